"""`group` by Triton: the bytes of the reference, and its values from them."""

from __future__ import annotations

import math

import pytest
import torch
from awkward import awkward, noise
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from encke.ops.select import load

TRITON, REFERENCE = load("triton"), load("reference")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
RATES = (1, 2, 4, 8)


def bits_of(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def same(x: Tensor, bits: int, stochastic: bool) -> None:
    seed = 2**64 - 5
    payload = TRITON.group_encode(x, bits, stochastic, seed)
    assert torch.equal(payload, REFERENCE.group_encode(x, bits, stochastic, seed))
    expected = REFERENCE.group_decode(payload, x.numel(), x.dtype)
    for read in (payload, payload.clone()):  # known, and to be checked
        decoded = TRITON.group_decode(read, x.numel(), x.dtype)
        assert torch.equal(bits_of(decoded), bits_of(expected))


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bits", RATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_and_values_are_those_of_the_reference(
    dtype: torch.dtype, bits: int, stochastic: bool
) -> None:
    same(awkward(dtype), bits, stochastic)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    count=st.sampled_from([0, 1, 3, 7, 9, 255, 256, 257, 2047, 2048, 2049, 2305]),
    bits=st.sampled_from(RATES),
    dtype=st.sampled_from(DTYPES),
    last=st.sampled_from([0.0, math.inf]),
)
def test_any_number_of_values_around_the_edges_of_groups(
    count: int, bits: int, dtype: torch.dtype, last: float
) -> None:
    x = noise(count, dtype)
    x[count - 1 :] = last  # a verbatim group that is shorter than the others
    same(x, bits, True)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.lists(st.floats(width=32, allow_subnormal=True), min_size=1, max_size=40))
def test_any_values_agree(values: list[float]) -> None:
    same(torch.tensor(values), 4, False)
