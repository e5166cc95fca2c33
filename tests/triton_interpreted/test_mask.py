"""`mask` and ReLU's bits by Triton against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encke.ops.select import load

TRITON, REFERENCE = load("triton"), load("reference")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SPECIAL = torch.tensor(
    [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-40, -1e-40, -1.0],
    dtype=torch.float64,
)


@settings(max_examples=16, deadline=None, derandomize=True)
@given(st.sampled_from([0, 1, 7, 8, 9, 15, 17, 2047, 2048, 2049, 4100]))
def test_truth_values_have_the_same_bits_and_come_back(count: int) -> None:
    x = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.4
    payload = TRITON.mask_encode(x)
    assert torch.equal(payload, REFERENCE.mask_encode(x))
    for read in (payload, payload.clone()):
        decoded = TRITON.mask_decode(read, count)
        assert decoded.dtype == torch.bool
        assert torch.equal(decoded, x)


@pytest.mark.parametrize("count", [8, 13, 2050])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_signs_have_the_same_bits_and_come_back(dtype: torch.dtype, count: int) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count)).to(dtype)
    x[:8] = SPECIAL.to(dtype)
    payload = TRITON.positive_encode(x)
    assert torch.equal(payload, REFERENCE.positive_encode(x))
    expected = REFERENCE.positive_decode(payload, count, dtype)
    assert torch.equal(TRITON.positive_decode(payload.clone(), count, dtype), expected)


@pytest.mark.parametrize(("shape", "inner"), [((2, 3, 5, 7), 35), ((8, 13, 12), 1)])
def test_norm_behind_relu_has_two_roundings_as_torch_has(
    shape: tuple[int, ...], inner: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    channels = shape[1] if inner > 1 else shape[-1]
    x = torch.randn(shape, generator=generator)
    gain, shift = torch.randn(2, channels, generator=generator)
    payload = REFERENCE.positive_encode(torch.randn(shape, generator=generator))
    found = TRITON.affine_where(x, payload, gain, shift, inner)
    assert torch.equal(found, REFERENCE.affine_where(x, payload, gain, shift, inner))
    assert found.count_nonzero() > 0
