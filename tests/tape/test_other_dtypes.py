"""Every op in double and half precision, wherever torch itself computes its gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import rare_op_cases  # noqa: F401 adds to the cases
import torch
from op_cases import CASES, Case
from test_ops import same

import encke
from encke.tape import Tape

#: How many of the cases torch's CPU kernels can compute, at least.
FEWEST = {torch.float64: 200, torch.bfloat16: 150, torch.float16: 120}
DTYPES = pytest.mark.parametrize("dtype", FEWEST, ids=str)


def possible(dtype: torch.dtype) -> list[Case]:
    """The cases whose gradients plain autograd computes in another precision."""
    found = []
    for case in CASES:
        other = replace(case, dtype=dtype)
        try:
            other.gradients()
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            continue  # torch has no kernel, or the function mixes types
        found.append(other)
    return found


@pytest.mark.slow
@DTYPES
def test_lossless_gradients_are_those_of_plain_autograd_bit_for_bit(dtype: torch.dtype) -> None:
    cases = possible(dtype)
    for case in cases:
        plain = case.gradients()
        kept = case.gradients(Tape(encke.Fixed(encke.Lossless())))
        assert all(same(a, b) for a, b in zip(plain, kept, strict=True)), str(case)
    assert len(cases) >= FEWEST[dtype]


@pytest.mark.slow
@DTYPES
def test_gradients_within_a_bound_are_close_to_the_plain_ones(dtype: torch.dtype) -> None:
    # Half precision rounds by itself: bfloat16 keeps eight bits.
    more = {torch.float64: 1.0, torch.float16: 2.0, torch.bfloat16: 4.0}[dtype]
    for case in possible(dtype):
        plain = case.gradients()
        kept = case.gradients(Tape(encke.Fixed(encke.RangeRelative(1e-3))))
        for a, b in zip(plain, kept, strict=True):
            if a is None or b is None or not a.isfinite().all():
                assert (a is None) == (b is None), str(case)
                continue
            difference = torch.linalg.vector_norm((a - b).double())
            limit = more * case.close * torch.linalg.vector_norm(a.double())
            assert difference <= limit, str(case)
