"""`index`: integers in the bits that their range needs, exactly, on every backend."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import encke
from encke.errors import CorruptStreamError
from encke.ops import native, select
from encke.ops.backend import Backend

DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
BACKENDS = ["reference"]
if select.native_problem() is None:
    BACKENDS += native.isa_available()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param == "reference":
        yield select.load("reference")
        return
    before = native.isa()
    native.use_isa(request.param)
    yield select.load("native")
    native.use_isa(before)


def spanning(count: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """`count` integers that need exactly `width` bits, from the dtype's smallest on."""
    low = torch.iinfo(dtype).min
    high = low + 2**width - 1
    generator = torch.Generator().manual_seed(count * 65 + width)
    x = torch.randint(low, min(high, 2**63 - 2) + 1, (count,), generator=generator)
    x[0], x[-1] = low, high
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 7, 9, 33, 8192, 8193])
def test_every_width_comes_back_in_the_fewest_bits(
    backend: Backend, count: int, dtype: torch.dtype
) -> None:
    every = 1 if count < 100 else 5
    for width in range(1, 8 * dtype.itemsize + 1, every):
        x = spanning(min(count, 8192), width, dtype)
        x = torch.cat([x, x[: count - len(x)]])
        payload = backend.index_encode(x)
        chunks = -(-count // 8192)
        assert payload[8 * chunks] == width
        assert torch.equal(backend.index_decode(payload, count, dtype), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_backends_write_the_bytes_of_the_format(
    backend: Backend, dtype: torch.dtype
) -> None:
    x = torch.tensor([5, 7, 6, 5, 12], dtype=dtype)
    bits = sum((value - 5) << 3 * place for place, value in enumerate(x.tolist()))
    expected = struct.pack("<qB", 5, 3) + bits.to_bytes(2, "little")
    assert bytes(backend.index_encode(x).tolist()) == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 8, 8192, 20_000])
def test_native_and_reference_agree(backend: Backend, count: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(count)
    x = (torch.randn(count, generator=generator) * 30).to(torch.int64).to(dtype)
    payload = backend.index_encode(x)
    reference = select.load("reference")
    assert torch.equal(payload, reference.index_encode(x))
    assert torch.equal(reference.index_decode(payload, count, dtype), x)


def test_the_extremes_of_int64_are_kept(backend: Backend) -> None:
    x = torch.tensor([-(2**63), 2**63 - 1, 0, -1, 1])
    assert torch.equal(backend.index_decode(backend.index_encode(x), 5, torch.int64), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_values_take_nine_bytes_a_chunk(backend: Backend, dtype: torch.dtype) -> None:
    x = torch.full((20_000,), 99, dtype=dtype)
    payload = backend.index_encode(x)
    assert payload.numel() == 27
    assert torch.equal(backend.index_decode(payload, 20_000, dtype), x)


def test_a_huge_claim_is_refused_before_it_is_allocated(backend: Backend) -> None:
    payload = backend.index_encode(torch.full((10,), 3))
    with pytest.raises(CorruptStreamError):
        backend.index_decode(payload, 2**61, torch.int64)


def test_widths_and_bases_beyond_the_dtype_are_rejected(backend: Backend) -> None:
    payload = backend.index_encode(torch.arange(8, dtype=torch.uint8))
    wide = payload.clone()
    wide[8] = 9
    low = payload.clone()
    low[7] = 0x80
    for broken in (wide, low, payload[:-1], torch.cat([payload, payload[:1]])):
        with pytest.raises(CorruptStreamError):
            backend.index_decode(broken, 8, torch.uint8)


def test_bits_behind_the_last_code_are_rejected(backend: Backend) -> None:
    payload = backend.index_encode(torch.arange(3, dtype=torch.int32))
    payload[-1] |= 0x80
    with pytest.raises(CorruptStreamError):
        backend.index_decode(payload, 3, torch.int32)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=120), st.integers(0, 40), st.sampled_from(DTYPES))
def test_hostile_bytes_give_a_tensor_or_an_error(
    blob: bytes, count: int, dtype: torch.dtype
) -> None:
    payload = torch.tensor(list(blob), dtype=torch.uint8)
    outcomes = []
    for name in {"reference", "native"} if len(BACKENDS) > 1 else {"reference"}:
        try:
            outcomes.append(select.load(name).index_decode(payload, count, dtype).tolist())
        except CorruptStreamError:
            outcomes.append(None)
    assert all(outcome == outcomes[0] for outcome in outcomes)


@pytest.mark.parametrize("position", range(9 + 12))
def test_flipped_bytes_decode_alike_everywhere(backend: Backend, position: int) -> None:
    x = torch.arange(32, dtype=torch.int16) * 3 - 40
    payload = backend.index_encode(x)
    payload[position] ^= 0xFF
    try:
        expected = select.load("reference").index_decode(payload, 32, torch.int16)
    except CorruptStreamError:
        with pytest.raises(CorruptStreamError):
            backend.index_decode(payload, 32, torch.int16)
    else:
        assert torch.equal(backend.index_decode(payload, 32, torch.int16), expected)


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(7),
        torch.zeros(0, 4, dtype=torch.int32),
        torch.arange(120, dtype=torch.int16).view(10, 12).t(),
        torch.arange(240).view(2, 5, 4, 6).to(memory_format=torch.channels_last),
        torch.arange(6, dtype=torch.uint8).view(1, 6).expand(5, 6),
    ],
    ids=["scalar", "empty", "transposed", "channels-last", "expanded"],
)
def test_shapes_and_strides_survive_a_stream(x: torch.Tensor) -> None:
    packed = encke.compress(x, encke.Lossless(), codec="index")
    y = encke.Packed.from_bytes(packed.to_bytes()).decompress()
    assert y.dtype == x.dtype
    assert torch.equal(x, y)


def test_max_pool_indices_shrink_to_the_bits_of_a_plane() -> None:
    images = torch.randn(2, 8, 32, 32, generator=torch.Generator().manual_seed(1))
    _, index = torch.nn.functional.max_pool2d(images, 2, return_indices=True)
    packed = encke.compress(index, encke.Lossless(), codec="index")
    assert packed.payload.numel() == 9 + index.numel() * 10 // 8
    assert torch.equal(encke.decompress(packed), index)
