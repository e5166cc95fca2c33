"""`mask`: one bit a value, the same on every backend, and nothing else is accepted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import encke
from encke.errors import BoundError, CorruptStreamError
from encke.ops import native, select
from encke.ops.backend import Backend

COUNTS = (0, 1, 7, 8, 9, 31, 32, 33, 255, 1000, 70_001)
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


def truth(count: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.3


@pytest.mark.parametrize("count", COUNTS)
def test_bits_are_packed_lowest_first(backend: Backend, count: int) -> None:
    x = truth(count)
    expected = [
        sum(int(bit) << place for place, bit in enumerate(x[start : start + 8].tolist()))
        for start in range(0, count, 8)
    ]
    assert backend.mask_encode(x).tolist() == expected


@pytest.mark.parametrize("count", COUNTS)
def test_every_truth_value_comes_back(backend: Backend, count: int) -> None:
    x = truth(count)
    y = backend.mask_decode(backend.mask_encode(x), count)
    assert y.dtype == torch.bool
    assert torch.equal(y, x)


def test_any_byte_but_zero_is_true(backend: Backend) -> None:
    raw = torch.arange(256, dtype=torch.uint8)
    y = backend.mask_decode(backend.mask_encode(raw.view(torch.bool)), 256)
    assert torch.equal(y, raw != 0)
    assert y.view(torch.uint8).max() == 1


@pytest.mark.parametrize("count", [1, 7, 9, 33, 70_001])
def test_bits_behind_the_last_value_are_rejected(backend: Backend, count: int) -> None:
    payload = backend.mask_encode(truth(count))
    payload[-1] |= 0x80
    with pytest.raises(CorruptStreamError):
        backend.mask_decode(payload, count)


@pytest.mark.parametrize("count", [0, 1, 8, 100])
def test_any_other_length_is_rejected(backend: Backend, count: int) -> None:
    payload = backend.mask_encode(truth(count))
    longer = torch.cat([payload, torch.zeros(1, dtype=torch.uint8)])
    with pytest.raises(CorruptStreamError):
        backend.mask_decode(longer, count)
    for claimed in (count + 9, 2**40, 2**61):
        with pytest.raises(CorruptStreamError):
            backend.mask_decode(payload, claimed)


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(True),
        torch.zeros(3, 0, 2, dtype=torch.bool),
        truth(120).view(10, 12).t(),
        truth(240).view(2, 5, 4, 6).to(memory_format=torch.channels_last),
        truth(6).view(1, 6).expand(5, 6),
        truth(100)[::3],
    ],
    ids=["scalar", "empty", "transposed", "channels-last", "expanded", "strided"],
)
def test_shapes_and_strides_survive_a_stream(x: torch.Tensor) -> None:
    packed = encke.compress(x, encke.Lossless())
    assert packed.codec == "mask"
    assert packed.payload.numel() == -(-x.numel() // 8)
    y = encke.Packed.from_bytes(packed.to_bytes()).decompress()
    assert torch.equal(x, y)
    assert y.stride() == encke.decompress(packed).stride()


def test_a_rate_is_refused_with_what_to_use() -> None:
    with pytest.raises(BoundError, match="group"):
        encke.compress(truth(10), encke.FixedRate(2), codec="mask")
