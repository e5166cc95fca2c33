"""`lossless`: every bit of every dtype, and no frame is trusted."""

from __future__ import annotations

import math

import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import encke
from encke.codec.lossless import CHUNK, LosslessPlanes
from encke.codec.stream import DTYPES
from encke.errors import BoundError, CorruptStreamError
from encke.ops.select import load

CODEC = LosslessPlanes()


def bits_of(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def any_values(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Random bytes as values: every NaN payload, subnormal and infinity may occur."""
    generator = torch.Generator().manual_seed(count)
    size = count * dtype.itemsize
    raw = torch.randint(256, (size,), generator=generator, dtype=torch.uint8)
    return raw % 2 == 0 if dtype == torch.bool else raw.view(dtype)


def decode(payload: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return CODEC.decode(payload, shape, dtype, load("reference"))


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("count", [0, 1, 2, 1000, CHUNK + 1])
def test_every_bit_pattern_comes_back(count: int, dtype: torch.dtype) -> None:
    for x in (any_values(count, dtype), torch.arange(count).to(dtype)):
        packed = encke.compress(x, encke.Lossless(), codec="lossless")
        assert packed.promised == 0.0
        assert torch.equal(bits_of(packed.decompress()), bits_of(x))


def test_a_not_a_number_keeps_its_payload() -> None:
    x = torch.tensor([0x7FC00001, 0x7F800001, -1, 0x7F800000], dtype=torch.int32)
    packed = encke.compress(x.view(torch.float32), encke.Lossless(), codec="lossless")
    assert torch.equal(packed.decompress().view(torch.int32), x)


def test_threads_do_not_change_the_bytes() -> None:
    x = torch.arange(CHUNK * 2 + 5, dtype=torch.float32)
    before = torch.get_num_threads()
    payloads = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        packed = encke.compress(x, encke.Lossless(), codec="lossless")
        payloads.append(packed.payload)
        assert torch.equal(packed.decompress(), x)
    torch.set_num_threads(before)
    assert torch.equal(payloads[0], payloads[1])


def test_values_that_do_not_shrink_cost_only_the_table() -> None:
    x = any_values(10_000, torch.int64)
    payload = encke.compress(x, encke.Lossless(), codec="lossless").payload
    assert payload.numel() == 80_000 + 4 * 8


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(1.5),
        torch.zeros(0, 4),
        torch.randn(30, 40).t(),
        torch.randn(2, 5, 4, 6).to(memory_format=torch.channels_last),
        torch.randn(1, 6).expand(5, 6),
        torch.randn(100)[::3],
    ],
    ids=["scalar", "empty", "transposed", "channels-last", "expanded", "strided"],
)
def test_shapes_and_strides_survive_a_stream(x: torch.Tensor) -> None:
    packed = encke.compress(x, encke.Lossless(), codec="lossless")
    y = encke.Packed.from_bytes(packed.to_bytes()).decompress()
    assert torch.equal(x, y)
    assert y.stride() == packed.decompress().stride()


def with_frame(frame: bytes) -> torch.Tensor:
    """A payload of one plane, stored as `frame`."""
    return torch.tensor([*len(frame).to_bytes(4, "little"), *frame], dtype=torch.uint8)


def test_frames_that_lie_about_their_size_are_rejected() -> None:
    honest = zstandard.ZstdCompressor().compress(bytes(1000))
    assert decode(with_frame(honest), (1000,), torch.uint8).sum() == 0
    bomb = zstandard.ZstdCompressor().compress(bytes(10**7))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    two = zstandard.ZstdCompressor().compress(bytes(500)) * 2
    for frame in (bomb, unsized, skippable, two, honest + b"x", honest[:-1], b"x"):
        with pytest.raises(CorruptStreamError):
            decode(with_frame(frame[:999]), (1000,), torch.uint8)


def test_a_huge_claim_is_refused_before_it_is_allocated() -> None:
    payload = encke.compress(torch.zeros(10), encke.Lossless(), codec="lossless").payload
    with pytest.raises(CorruptStreamError):
        decode(payload, (2**61,), torch.float32)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_flipped_and_cut_payloads_give_a_tensor_or_an_error(data: st.DataObject) -> None:
    x = torch.arange(300, dtype=torch.int32)
    blob = bytearray(encke.compress(x, encke.Lossless(), codec="lossless").payload.tolist())
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    blob = blob[: data.draw(st.integers(0, len(blob)))] if data.draw(st.booleans()) else blob
    try:
        y = decode(torch.tensor(list(blob), dtype=torch.uint8), (300,), torch.int32)
    except CorruptStreamError:
        return
    assert y.shape == (300,)


def test_truth_values_are_zero_or_one() -> None:
    packed = encke.compress(
        torch.tensor([3, 0, 1], dtype=torch.uint8).view(torch.bool),
        encke.Lossless(),
        codec="lossless",
    )
    assert packed.payload[-3:].tolist() == [1, 0, 1]
    packed.payload[-1] = 2
    with pytest.raises(CorruptStreamError):
        packed.decompress()


def test_any_error_bound_is_kept_by_keeping_everything() -> None:
    x = torch.tensor([math.pi, -math.inf])
    packed = encke.compress(x, encke.Absolute(0.5), codec="lossless")
    assert torch.equal(packed.decompress(), x)
    with pytest.raises(BoundError, match="group"):
        encke.compress(x, encke.FixedRate(2), codec="lossless")
