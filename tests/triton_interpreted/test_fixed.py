"""`fixed` by Triton: the bytes of the reference, and its values from them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from encke.bound import PointwiseRelative
from encke.codec import compress
from encke.ops.quantiser import DITHER, HALF, PLAIN, POINTWISE, Quantiser, linear, pointwise
from encke.ops.select import load

TRITON, REFERENCE = load("triton"), load("reference")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
KINDS = {"plain": PLAIN, "half": HALF, "dither": DITHER, "pointwise": POINTWISE}


def quantiser(kind: int, error: float, dtype: torch.dtype) -> Quantiser:
    if kind == POINTWISE:
        return pointwise(error, dtype)
    return linear(error, dtype, kind=kind, seed=2**63 + 5)


def noise(count: int, dtype: torch.dtype) -> Tensor:
    g = torch.Generator().manual_seed(count)
    x = torch.randn(count, generator=g, dtype=torch.float64) * 3
    return torch.where(torch.rand(count, generator=g) < 0.3, 0.0, x).to(dtype)


def mixed(dtype: torch.dtype) -> Tensor:
    """Blocks of every kind: sparse, dense, both tiers, raw, zero, and every special value."""
    facts = torch.finfo(dtype)
    x = noise(560, dtype)
    x[32:96] = x[32:96].abs() + 0.5
    x[96:128] = -x[96:128].abs() - 1
    x[128:160] *= 1e-4
    x[160:192] = x[160:192] * 1e4
    x[192:224] = 0.0
    x[224:256:2] = facts.tiny / 2
    x[256:288:3] = facts.max
    x[288:320:9] = math.nan
    x[320:352:7] = -math.inf
    x[352:384:5] = -0.0
    x[384:416] = facts.tiny
    x[416:448] = 1e-3
    return x


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def same(x: Tensor, q: Quantiser) -> Tensor:
    """Encode and decode by both and compare; the decoded values."""
    payload = TRITON.fixed_encode(x, q)
    assert torch.equal(payload, REFERENCE.fixed_encode(x, q))
    # A clone is not known to have been made here: it is checked as any stream is.
    decoded = TRITON.fixed_decode(payload.clone(), x.numel(), x.dtype)
    expected = REFERENCE.fixed_decode(payload, x.numel(), x.dtype)
    assert decoded.dtype == x.dtype
    assert torch.equal(bits(decoded), bits(expected))
    return decoded


@pytest.mark.parametrize(
    ("kind", "error"), [*((kind, 0.3) for kind in KINDS), ("plain", 1e-3), ("dither", 1e-3)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_and_values_are_those_of_the_reference(
    dtype: torch.dtype, kind: str, error: float
) -> None:
    x = mixed(dtype)
    y = same(x, quantiser(KINDS[kind], error, dtype))
    finite = torch.isfinite(x)
    assert torch.equal(bits(y[~finite]), bits(x[~finite]))
    off = (y - x).abs().to(torch.float64)[finite]
    limit = error * x.abs().to(torch.float64)[finite] if kind == "pointwise" else error
    assert bool((off <= limit).all())
    if kind in ("half", "dither"):
        assert torch.equal(y == 0, x == 0)


@pytest.mark.parametrize("error", [1e-30, 1e30])
@pytest.mark.parametrize("kind", ["plain", "dither"])
def test_bounds_that_leave_one_tier_or_none_agree(kind: str, error: float) -> None:
    same(mixed(torch.float32)[:200], quantiser(KINDS[kind], error, torch.float32))


def test_the_widest_codes_agree() -> None:
    x = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    same(x, quantiser(PLAIN, 4e-9, torch.float64))
    same(torch.where(torch.arange(64) % 3 == 0, 0.0, x), quantiser(DITHER, 4e-9, torch.float64))


@settings(max_examples=9, deadline=None, derandomize=True)
@given(
    count=st.sampled_from([0, 1, 2, 30, 31, 32, 33, 63, 64, 65, 95, 97, 255, 257]),
    kind=st.sampled_from(sorted(KINDS)),
    dtype=st.sampled_from(DTYPES),
)
def test_any_number_of_values_around_the_edges_of_blocks(
    count: int, kind: str, dtype: torch.dtype
) -> None:
    same(noise(count, dtype), quantiser(KINDS[kind], 0.05, dtype))


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    count=st.sampled_from([8160, 8191, 8192, 8193, 8224, 16383, 16385]),
    kind=st.sampled_from(sorted(KINDS)),
    dtype=st.sampled_from(DTYPES),
)
def test_any_number_of_values_around_the_edges_of_chunks(
    count: int, kind: str, dtype: torch.dtype
) -> None:
    x, q = noise(count, dtype), quantiser(KINDS[kind], 0.05, dtype)
    assert torch.equal(TRITON.fixed_encode(x, q), REFERENCE.fixed_encode(x, q))


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    values=st.lists(st.floats(width=32, allow_subnormal=True), min_size=1, max_size=70),
    kind=st.sampled_from(sorted(KINDS)),
)
def test_any_values_agree(values: list[float], kind: str) -> None:
    same(torch.tensor(values), quantiser(KINDS[kind], 0.1, torch.float32))


def test_whole_chunks_and_a_second_page_of_dither_decode() -> None:
    x = torch.zeros(65536 + 300)
    x[65000:] = noise(836, torch.float32)
    same(x, quantiser(DITHER, 0.05, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_filling_memory_that_is_there(dtype: torch.dtype) -> None:
    x = noise(100, dtype)
    payload = TRITON.fixed_encode(x, quantiser(PLAIN, 0.1, dtype))
    out = torch.full((100,), 7.0, dtype=dtype)
    assert TRITON.fixed_decode(payload, 100, dtype, out) is out
    assert torch.equal(out, REFERENCE.fixed_decode(payload, 100, dtype))


def test_compress_takes_the_backend_by_name() -> None:
    x = noise(500, torch.float32).view(20, 25).t()
    packed = compress(x, PointwiseRelative(1e-2), codec="fixed", backend="triton")
    decoded = packed.decompress(backend="triton")
    assert decoded.stride() == x.stride()
    assert torch.equal(decoded, packed.decompress(backend="reference"))
