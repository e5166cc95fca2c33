"""`zfp`: a strict bound around a library that has none, and no byte of it is trusted."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import encke
from encke.codec.zfp import Zfp
from encke.errors import BoundError, CorruptStreamError, UnsupportedError
from encke.ops.select import load

DTYPES = (torch.float32, torch.float64)


def smooth(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    for dimension in range(len(shape)):
        x = x.cumsum(dimension) / 3
    return x.to(dtype)


def decode(payload: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return Zfp().decode(payload, shape, dtype, load("reference"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(), (1,), (0, 3), (5,), (1000,), (33, 31), (1, 30, 1, 20), (9, 8, 7), (2,) * 7]
)
@pytest.mark.parametrize(
    "bound",
    [
        encke.Absolute(1e-3),
        encke.RangeRelative(1e-2),
        encke.RmsRelative(0.1),
    ],
)
def test_decoded_values_never_leave_the_bound(
    shape: tuple[int, ...], bound: encke.Bound, dtype: torch.dtype
) -> None:
    x = smooth(*shape, dtype=dtype)
    packed = encke.compress(x, bound, codec="zfp")
    y = encke.Packed.from_bytes(packed.to_bytes()).decompress()
    assert y.shape == x.shape
    assert y.dtype == dtype
    assert packed.max_error(x) <= packed.promised


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("error", [1e-3, 1e-12])
def test_the_bound_holds_where_zfp_breaks_its_own(error: float, dtype: torch.dtype) -> None:
    x = smooth(64, 64, dtype=dtype)
    x[3] *= 1e11
    x[10, 10] = torch.finfo(dtype).max
    packed = encke.compress(x, encke.Absolute(error), codec="zfp")
    assert packed.max_error(x) <= error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bound", [encke.Absolute(1e-2), encke.FixedRate(8)])
def test_values_that_are_not_finite_come_back_bit_for_bit(
    bound: encke.Bound, dtype: torch.dtype
) -> None:
    x = smooth(40, 40, dtype=dtype)
    x[0, 0], x[5, 5], x[39, 39] = math.nan, math.inf, -math.inf
    packed = encke.compress(x, bound, codec="zfp")
    y = packed.decompress()
    assert torch.equal(y.isfinite(), x.isfinite())
    assert torch.equal(y[~x.isfinite()].view(torch.uint8), x[~x.isfinite()].view(torch.uint8))
    assert packed.max_error(x) <= packed.promised


@pytest.mark.parametrize("rate", [4, 5.5, 16])
def test_a_rate_is_the_size_and_its_error_is_promised(rate: float) -> None:
    x = smooth(64, 64)
    packed = encke.compress(x, encke.FixedRate(rate), codec="zfp")
    assert abs(packed.payload.numel() * 8 / x.numel() - rate) < 0.1
    assert packed.max_error(x) == packed.promised


def test_smooth_fields_shrink() -> None:
    x = torch.sin(torch.arange(64.0) / 9).outer(torch.cos(torch.arange(64.0) / 7))
    assert encke.compress(x, encke.RangeRelative(1e-3), codec="zfp").ratio > 5


def test_a_range_of_zero_keeps_every_value() -> None:
    x = torch.full((50, 50), math.pi)
    packed = encke.compress(x, encke.RangeRelative(0.1), codec="zfp")
    assert packed.promised == 0.0
    assert torch.equal(packed.decompress(), x)


def test_strides_come_back() -> None:
    x = smooth(2, 5, 4, 6).to(memory_format=torch.channels_last)
    y = encke.compress(x, encke.Absolute(1e-3), codec="zfp").decompress()
    assert y.stride() == x.stride()


def test_what_zfp_cannot_do_is_refused_with_what_can() -> None:
    x = smooth(100)
    with pytest.raises(BoundError, match=r"from 2\.25 to 32"):
        encke.compress(x, encke.FixedRate(0.25), codec="zfp")
    with pytest.raises(BoundError, match="'fixed'"):
        encke.compress(x, encke.PointwiseRelative(0.1), codec="zfp")
    with pytest.raises(BoundError, match="'lossless'"):
        encke.compress(x, encke.Absolute(0.0), codec="zfp")
    with pytest.raises(UnsupportedError, match="'entropy'"):
        encke.compress(x, encke.Absolute(0.1), codec="zfp", dither=True)
    with pytest.raises(UnsupportedError, match="float32"):
        encke.compress(x.half(), encke.Absolute(0.1), codec="zfp")


def test_a_missing_library_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zfpy", None)
    with pytest.raises(UnsupportedError, match="pip install"):
        encke.compress(smooth(100), encke.Absolute(0.1), codec="zfp")


@pytest.mark.parametrize("bound", [encke.Absolute(1e-2), encke.FixedRate(6)])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_hostile_payloads_give_a_tensor_or_an_error(
    bound: encke.Bound, data: st.DataObject
) -> None:
    x = smooth(12, 13)
    x[2, 2] = math.nan
    blob = bytearray(encke.compress(x, bound, codec="zfp").payload.tolist())
    if data.draw(st.booleans()):
        size = len(blob) - 32
        blob[32:] = data.draw(st.binary(min_size=size, max_size=size))
    for _ in range(data.draw(st.integers(0, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del blob[data.draw(st.integers(0, len(blob))) :]
    try:
        y = decode(torch.tensor(list(blob), dtype=torch.uint8), (12, 13), torch.float32)
    except CorruptStreamError:
        return
    assert y.shape == (12, 13)


def test_streams_of_ones_stay_inside_the_buffer() -> None:
    x = smooth(64, 64)
    for bound in (encke.Absolute(1e-6), encke.FixedRate(4)):
        payload = encke.compress(x, bound, codec="zfp").payload
        payload[32:] = 0xFF
        assert decode(payload, (64, 64), torch.float32).shape == (64, 64)


def test_a_huge_claim_is_refused_before_it_is_allocated() -> None:
    payload = encke.compress(smooth(64), encke.Absolute(1e-3), codec="zfp").payload
    for shape in ((2**40,), (2**20, 2**20, 2**20)):
        with pytest.raises(CorruptStreamError):
            decode(payload, shape, torch.float32)


def test_exceptions_out_of_order_or_range_are_rejected() -> None:
    x = smooth(100)
    x[10] = x[20] = math.nan
    payload = encke.compress(x, encke.Absolute(1e-2), codec="zfp").payload
    places = payload.numel() - 2 * (8 + 4)
    for first, second in ((20, 10), (10, 10), (10, 100)):
        broken = payload.clone()
        broken[places], broken[places + 8] = first, second
        with pytest.raises(CorruptStreamError):
            decode(broken, (100,), torch.float32)
