"""Room, overflow and trust: what an encoder does before anybody knows a payload's length."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from encke.errors import CorruptStreamError
from encke.ops.quantiser import DITHER, linear
from encke.ops.select import load
from encke.ops.triton import statistics
from encke.ops.triton.backend import Triton

REFERENCE = load("reference")
Q = linear(0.05, torch.float32, kind=DITHER, seed=3)


def noise(count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("capacity", [0, 40, 600])
def test_too_little_room_is_noticed_and_made_good(capacity: int) -> None:
    x = noise(9000)
    later = Triton().fixed_encode_later(x, Q, capacity=capacity)
    expected = REFERENCE.fixed_encode(x, Q)
    assert int(later.needed) == expected.numel()
    assert torch.equal(later.settle(), expected)
    assert later.settle() is later.settle()


def test_nothing_is_written_beyond_the_room_there_is() -> None:
    """The buffer is the front of a larger one whose rest must stay as it is."""
    from encke.ops.triton import fixed, index

    x, room = noise(9000), 500
    whole = torch.full((20_000,), 99, dtype=torch.uint8)
    empty, torch_empty = whole[:room], torch.empty
    integers = torch.arange(9000) % 100

    def front(size: Any, **options: Any) -> torch.Tensor:
        return empty if size == room else torch_empty(size, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", front)
        fixed.encode(x, Q, capacity=room)
        index.encode(integers, capacity=room)
    assert bool((whole[:room] != 99).any())
    assert bool((whole[room:] == 99).all())


def test_the_last_length_is_the_next_ones_room(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, asked = Triton(), []
    plain = backend.fixed_encode_later

    def watched(*given: Any, capacity: int, **options: Any) -> Any:
        asked.append(capacity)
        return plain(*given, capacity=capacity, **options)

    monkeypatch.setattr(backend, "fixed_encode_later", watched)
    x = noise(2000)
    first = backend.fixed_encode(x, Q)
    second = backend.fixed_encode(x, Q)
    assert torch.equal(first, second)
    assert asked[0] > 2000 * 4
    assert first.numel() <= asked[1] <= first.numel() * 1.05
    # It stays in the buffer it was written to, which is hardly larger.
    assert second.untyped_storage().nbytes() == asked[1]


def test_an_index_that_needs_more_than_last_time_is_whole() -> None:
    backend = Triton()
    for highest in (2, 200, 2):
        x = torch.arange(3000) % highest
        assert torch.equal(backend.index_encode(x), REFERENCE.index_encode(x))


def test_a_payload_made_here_is_decoded_without_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, x = Triton(), noise(100)
    made = [
        (backend.fixed_encode(x, Q), backend.fixed_decode, torch.float32),
        (backend.group_encode(x, 4, True, 1), backend.group_decode, torch.float32),
        (backend.index_encode(x.to(torch.int32)), backend.index_decode, torch.int32),
    ]
    bits = backend.positive_encode(x)

    def waits(*_: Any) -> None:
        pytest.fail("the host waited for the device")

    for name in ("item", "tolist", "__int__", "__bool__", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, waits)
    for payload, decode, dtype in made:
        decode(payload, 100, dtype)
    backend.mask_decode(bits, 100)
    backend.positive_decode(bits, 100, torch.float32)


def test_encoding_without_waiting_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, x = Triton(), noise(100)
    integers = x.to(torch.int32)
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__int__", "__bool__", "cpu"):
            patch.setattr(torch.Tensor, name, lambda *_: pytest.fail("the host waited"))
        found = [
            backend.fixed_encode_later(x, Q, capacity=200, statistics=statistics.room(x)),
            backend.group_encode_later(x, 2, True, 1),
            backend.index_encode_later(integers, capacity=50),
        ]
        backend.mask_encode(x > 0)
    assert torch.equal(found[0].settle(), REFERENCE.fixed_encode(x, Q))
    assert torch.equal(found[1].settle(), REFERENCE.group_encode(x, 2, True, 1))
    assert torch.equal(found[2].settle(), REFERENCE.index_encode(integers))


def test_a_payload_that_was_written_to_is_checked_again() -> None:
    backend, x = Triton(), noise(100)
    payload = backend.fixed_encode(x, Q)
    payload[36] = 0x1F
    with pytest.raises(CorruptStreamError):
        backend.fixed_decode(payload, 100, torch.float32)


def test_what_is_known_of_a_payload_goes_with_it_and_ends_with_it() -> None:
    backend, x = Triton(), noise(100)
    payload = backend.fixed_encode(x, Q)
    moved = backend.carry(payload, payload.clone())
    assert backend._facts(moved, "fixed", 100, torch.float32) == Q
    assert backend._facts(moved, "fixed", 99, torch.float32) is None
    stranger = backend.carry(moved.clone(), moved.clone())
    assert backend._facts(stranger, "fixed", 100, torch.float32) is None
    del payload, moved
    gc.collect()
    assert not backend._made._known


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_statistics_are_those_of_the_finite_values(dtype: torch.dtype) -> None:
    x = noise(9000).to(dtype)
    x[::3] = 0.0
    x[1] = -0.0
    x[4:7] = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=dtype)
    finite = x[torch.isfinite(x)].double()
    beside = statistics.room(x)
    Triton().fixed_encode_later(x, linear(0.1, dtype), statistics=beside)
    for found in (statistics.read(beside), statistics.read(statistics.measure(x))):
        assert (found.low, found.high) == (finite.min().item(), finite.max().item())
        assert found.square_sum == pytest.approx(finite.square().sum().item(), rel=1e-12)
        assert (found.nonzeros, found.nonfinite) == (finite.count_nonzero().item(), 3)


def test_statistics_of_nothing() -> None:
    found = statistics.read(statistics.measure(torch.empty(0)))
    assert found == (float("inf"), float("-inf"), 0.0, 0, 0)
