"""Packing on a side stream: the order is right, and a wrong one would be noticed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from simulated_streams import MAIN, SIDE, Simulated
from torch import Tensor, nn

import encke
from encke.codec import Packed, compress
from encke.tape.policy import SavedTensor, StorageDecision
from encke.tape.transfer.side_stream import SideStream, SideStreams


@pytest.fixture(autouse=True)
def _every_operation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # The native kernels read memory behind the simulation's back.
    monkeypatch.setenv("ENCKE_BACKEND", "reference")


@pytest.fixture
def streams() -> Iterator[Simulated]:
    with Simulated() as simulated:
        yield simulated


class Offloading(encke.Fixed):
    """Every packed tensor leaves the device."""

    def treat(self, sight: SavedTensor) -> StorageDecision:
        return replace(super().treat(sight), offload=True)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 10),
    )


def gradients(model: nn.Module, tape: Any, *, steps: int = 2) -> list[Tensor]:
    for step in range(steps):
        x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
    tape.detach()
    gc.collect()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [encke.Fixed, Offloading])
def test_training_beside_a_side_stream_is_in_order_and_gives_the_same_gradients(
    kind: type[encke.Fixed], streams: Simulated
) -> None:
    bound = encke.RangeRelative(0.02)
    model = network()
    tape = encke.attach(model, policy=kind(bound, codec="fixed"))
    tape.use_side_stream(SideStreams(streams=lambda _: streams))
    found = gradients(model, tape)
    streams.collect()
    assert streams.faults == []
    assert streams.queued[SIDE] > 50, "the packing is to run there"

    plain = network()
    tape = encke.attach(plain, policy=encke.Fixed(bound, codec="fixed"))
    for ours, theirs in zip(found, gradients(plain, tape), strict=True):
        assert torch.equal(ours, theirs)


def test_offloaded_bytes_are_not_counted_as_held_on_the_device(streams: Simulated) -> None:
    model = network()
    tape = encke.attach(model, policy=Offloading(encke.RangeRelative(0.02), codec="fixed"))
    tape.use_side_stream(SideStreams(streams=lambda _: streams))
    out = model(torch.randn(8, 3, 6, 6))
    offloaded = tape.stored_bytes
    tape.detach()
    tape = encke.attach(model, policy=encke.Fixed(encke.RangeRelative(0.02), codec="fixed"))
    kept = model(torch.randn(8, 3, 6, 6))
    assert offloaded < tape.stored_bytes
    del out, kept


def pack(x: Tensor) -> Packed:
    return compress(x, encke.Absolute(0.1), codec="fixed")


def forward_and_backward(lane: SideStream, *, offload: bool, count: int = 4) -> list[Tensor]:
    """Tensors are made, packed and dropped; then asked for, the last first."""
    parcels = []
    for number in range(count):
        x = torch.full((600,), float(number)) + torch.linspace(0, 1, 600)
        parcels.append(lane.pack(x, lambda x=x: pack(x), offload=offload))
        del x
    found = [parcels.pop().decompress() for _ in range(count)]
    return found[::-1]


@pytest.mark.parametrize("offload", [False, True])
def test_what_a_lane_packs_comes_back(streams: Simulated, offload: bool) -> None:
    found = forward_and_backward(SideStream(streams), offload=offload)
    for number, x in enumerate(found):
        expected = torch.full((600,), float(number)) + torch.linspace(0, 1, 600)
        assert float((x - expected).abs().max()) <= 0.1
    streams.collect()
    assert streams.faults == []


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("stream", [MAIN, SIDE])
def test_a_wait_that_is_left_out_is_noticed(
    streams: Simulated, monkeypatch: pytest.MonkeyPatch, stream: str, offload: bool
) -> None:
    wait = streams.wait
    monkeypatch.setattr(
        streams, "wait", lambda who, event: None if who == stream else wait(who, event)
    )
    forward_and_backward(SideStream(streams), offload=offload)
    assert any(f"on {stream}: used before" in fault for fault in streams.faults)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("stream", [MAIN, SIDE])
def test_memory_that_is_not_marked_is_noticed(
    streams: Simulated, monkeypatch: pytest.MonkeyPatch, stream: str, offload: bool
) -> None:
    keep = streams.keep
    monkeypatch.setattr(streams, "keep", lambda t, who: None if who == stream else keep(t, who))
    forward_and_backward(SideStream(streams), offload=offload)
    streams.collect()
    assert any(f"while {stream} may still use it" in fault for fault in streams.faults)


def test_a_write_to_what_the_side_stream_reads_is_noticed(streams: Simulated) -> None:
    x = torch.randn(600)
    parcel = SideStream(streams).pack(x, lambda: pack(x))
    x.zero_()
    assert any("overwrites" in fault for fault in streams.faults)
    assert parcel.nbytes > 0


def test_backward_finds_the_next_parcels_on_their_way(streams: Simulated) -> None:
    lane = SideStream(streams, ahead=2)
    x = torch.randn(600)
    parcels = [lane.pack(x, lambda: pack(x), offload=True) for _ in range(5)]
    assert [p.nbytes for p in parcels] == [0] * 5
    assert [p.payload is None for p in parcels] == [True] * 5
    parcels[4].decompress()
    assert [p.payload is None for p in parcels] == [True, True, False, False, True]
    parcels[3].decompress()
    assert [p.payload is None for p in parcels] == [True, False, False, True, True]
    # A graph that is kept may be asked again.
    assert torch.equal(parcels[4].decompress(), parcels[0].decompress())


def test_parcels_that_were_dropped_are_not_fetched(streams: Simulated) -> None:
    lane = SideStream(streams, ahead=2)
    x = torch.randn(600)
    parcels = [lane.pack(x, lambda: pack(x), offload=True) for _ in range(3)]
    first = parcels[0]
    del parcels[1]
    gc.collect()
    parcels[-1].decompress()
    assert first.payload is None  # the chain ends where a parcel is gone
    assert first.decompress().shape == x.shape


def test_without_streams_there_is_no_lane() -> None:
    assert SideStreams().of(torch.device("cpu")) is None
    model = network()
    tape = encke.attach(model, policy=encke.Fixed(encke.RangeRelative(0.02)))
    tape.use_side_stream()
    assert all(bool(g.isfinite().all()) for g in gradients(model, tape, steps=1))
