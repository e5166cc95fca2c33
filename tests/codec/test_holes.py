"""Fields with holes: values keep their bound, everything else comes back bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import encke
from encke.bound import Absolute, Bound, Lossless, PointwiseRelative, RangeRelative, RmsRelative
from encke.codec import Packed, compress
from encke.errors import CorruptStreamError, UnsupportedError
from encke.ops.select import native_problem

BACKENDS = ["reference"] + (["native"] if native_problem() is None else [])
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
CODECS = ["auto", "fixed", "entropy", "predict", "lossless"]
PATTERN = {2: torch.int16, 4: torch.int32, 8: torch.int64}
SHAPE = (4, 13, 19)


def field(dtype: torch.dtype, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Temperatures, about: smooth, far from zero."""
    places = torch.meshgrid(*(torch.arange(n).double() for n in shape), indexing="ij")
    x = 270 + sum(10 * torch.sin(p * (0.3 + 0.1 * d)) for d, p in enumerate(places))
    return x.to(dtype)


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(PATTERN[x.element_size()])


def with_payloads(dtype: torch.dtype, count: int) -> Tensor:
    """NaN that differ in bits which say nothing."""
    nan = bits(torch.full((count,), math.nan, dtype=dtype))
    return (nan + torch.arange(count).to(nan.dtype) % 30).view(dtype)


def holed(dtype: torch.dtype, kind: str) -> tuple[Tensor, Tensor, tuple[float, ...]]:
    """A field, where it has values, and its fill values."""
    x, fill = field(dtype), 1e4 if dtype == torch.float16 else 1e36
    flat = x.view(-1)
    generator = torch.Generator().manual_seed(3)
    hole = torch.rand(x.numel(), generator=generator) < 0.3
    fills: tuple[float, ...] = (fill,)
    match kind:
        case "fill":
            flat[hole] = fill
        case "nan":
            flat[hole], fills = math.nan, ()
        case "all holes":
            hole[:] = True
            flat[:] = fill
        case "one value":
            hole[:] = True
            hole[77] = False
            flat[hole] = math.nan
        case "alternating":
            hole = torch.arange(x.numel()) % 2 == 1
            flat[hole] = fill
        case "payloads":
            flat[hole] = with_payloads(dtype, int(hole.sum()))
        case "several":
            flat[hole] = fill
            for i, odd in enumerate((-9999.0, math.inf, -math.inf, math.nan)):
                flat[40 * i : 40 * i + 9] = odd
                hole[40 * i : 40 * i + 9] = True
            fills = (fill, -9999.0)
        case "zeros":
            flat[hole] = torch.where(torch.arange(int(hole.sum())) % 3 == 0, -0.0, 0.0).to(
                dtype
            )
            fills = (0.0,)
    return x, ~hole.view(SHAPE), fills


KINDS = ["fill", "nan", "all holes", "one value", "alternating", "payloads", "several", "zeros"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("codec", CODECS)
def test_values_keep_the_bound_and_holes_their_bits(
    codec: str, dtype: torch.dtype, kind: str
) -> None:
    x, valid, fill = holed(dtype, kind)
    bounds: list[Bound] = [Absolute(0.5), RangeRelative(1e-3), RmsRelative(1e-3)]
    if codec not in ("predict",):
        bounds.append(PointwiseRelative(1e-2))
    for bound in bounds:
        packed = compress(x, bound, codec=codec, fill=fill)
        blob = packed.to_bytes()
        for backend in BACKENDS:
            y = Packed.from_bytes(blob).decompress(backend=backend)
            assert torch.equal(bits(y)[~valid], bits(x)[~valid])
            error = (y.double() - x.double()).abs()[valid]
            limit = packed.promised
            if bound.kind == "pointwise":
                error = error / x.double().abs()[valid]
            assert error.numel() == 0 or error.max().item() <= limit
        out = torch.zeros_like(x)
        assert torch.equal(bits(packed.decompress(out=out)), bits(packed.decompress()))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_backends_write_the_same_bytes_for_fixed(dtype: torch.dtype) -> None:
    x, _, fill = holed(dtype, "several")
    blobs = {
        compress(x, Absolute(0.5), codec="fixed", fill=fill, backend=b).to_bytes()
        for b in BACKENDS
    }
    assert len(blobs) == 1


def test_the_range_is_that_of_the_values() -> None:
    x, valid, fill = holed(torch.float32, "fill")
    extent = float(x[valid].max() - x[valid].min())
    packed = compress(x, RangeRelative(1e-2), fill=fill)
    assert packed.promised == pytest.approx(1e-2 * extent, rel=1e-6)
    assert compress(x, RangeRelative(1e-2)).promised > 1e30  # nothing is assumed silently


def test_holes_cost_little_more_than_their_outline() -> None:
    x = field(torch.float32, (30, 64, 96))
    clean = {c: compress(x, Absolute(0.05), codec=c).nbytes for c in CODECS[:4]}
    clean["entropy"] *= 2  # which gives up predicting rows: the values alone have none
    x[:, 20:40, 30:70] = 1e36
    for codec, before in clean.items():
        after = compress(x, Absolute(0.05), codec=codec, fill=1e36).nbytes
        assert after < before
        x_nan = torch.where(x == x[0, 30, 50], math.nan, x)
        assert compress(x_nan, Absolute(0.05), codec=codec).nbytes == after


def test_a_codec_that_was_named_stays_named_and_says_holes() -> None:
    x, _, fill = holed(torch.float32, "fill")
    packed = compress(x, Absolute(0.5), codec="entropy", fill=fill)
    assert (packed.codec, packed.holes) == ("entropy", True)
    assert "holes" in str(packed)
    assert not compress(field(torch.float32), Absolute(0.5), fill=fill).holes


def test_a_layout_comes_back() -> None:
    x = field(torch.float32).permute(2, 0, 1)
    x[3, :, 2:7] = 1e36
    y = compress(x, Absolute(0.5), codec="predict", fill=1e36).decompress()
    assert y.stride() == x.stride()
    assert torch.equal(y == 1e36, x == 1e36)
    target = torch.zeros(40, 4, 13)[:38:2]
    compress(x, Absolute(0.5), fill=1e36).decompress(out=target)
    assert torch.equal(target, y)


def test_dither_and_kept_zeros_work_beside_holes() -> None:
    x, valid, fill = holed(torch.float32, "fill")
    x = x - 270
    x[valid & (x.abs() < 2)] = 0
    x[~valid] = 1e36
    for codec in ("fixed", "entropy", "predict"):
        for options in ({"dither": True, "seed": 4}, {"keep_nonzero": True}):
            packed = compress(x, Absolute(0.5), codec=codec, fill=fill, **options)
            y = packed.decompress()
            assert (y - x).abs()[valid].max() <= 0.5
            if "keep_nonzero" in options:
                assert torch.equal(y == 0, x == 0)


def test_fill_changes_nothing_where_there_is_none_of_it() -> None:
    x = field(torch.float32)
    for y in (x, x.to(torch.int32), x > 270, torch.zeros(0)):
        plain = compress(y, Absolute(0.5)).to_bytes()
        assert compress(y, Absolute(0.5), fill=[1e36, -9999]).to_bytes() == plain


def test_lossless_keeps_values_between_holes() -> None:
    x, _, _ = holed(torch.float64, "payloads")
    packed = compress(x, Lossless(), fill=math.nan)
    assert packed.holes
    assert torch.equal(bits(packed.decompress()), bits(x))


def test_what_cannot_be_a_fill_value_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="fill is"):
        compress(torch.zeros(9), Absolute(0.1), fill="land")  # type: ignore[arg-type]


def test_heads_that_cannot_be_are_refused() -> None:
    x, _, fill = holed(torch.float32, "several")
    packed = compress(x, Absolute(0.5), codec="fixed", fill=fill)
    blob = packed.to_bytes(checksum=False)
    start = len(blob) - packed.payload.numel()
    wrong = 0
    for at in range(80):
        for value in (0, 1, 0x7F, 0xFF):
            mutant = bytearray(blob)
            if mutant[start + at] == value:
                continue
            mutant[start + at] = value
            try:
                encke.decompress(Packed.from_bytes(mutant))
            except CorruptStreamError:
                wrong += 1
    assert wrong > 150


def test_a_stream_of_integers_cannot_have_holes() -> None:
    blob = bytearray(compress(torch.arange(9), Lossless()).to_bytes(checksum=False))
    blob[4] = 2
    with pytest.raises(CorruptStreamError):
        encke.decompress(Packed.from_bytes(blob))
