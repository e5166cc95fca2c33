"""Packing beside the forward pass, and packed bytes on the host until backward wants them.

A `SideStream` queues packing behind an event that says that the tensor is there, so
that the next layer starts without waiting. With `offload` the packed bytes, a tenth of the
tensor, go on to pinned memory on the same stream; in backward they are fetched a few tensors
ahead, each one starting those that will be asked for after it. No step makes the host wait;
what an encoder waits for to learn its payload's length is its own affair.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from encke.codec import Packed
from encke.ops.select import select
from encke.tape.transfer.streams import Cuda, Streams


class TransferredTensor:
    """A packed tensor that a lane has made, on the device or on the host.

    packed  what it is; without its bytes while they are on the host
    """

    __slots__ = ("__weakref__", "_lane", "before", "done", "host", "packed", "payload")

    def __init__(
        self, lane: SideStream, packed: Packed, payload: Tensor | None, done: Any
    ) -> None:
        self._lane = lane
        self.packed = packed
        self.payload = payload
        #: Behind it the bytes are where they should be.
        self.done = done
        self.host: Tensor | None = None
        #: The parcel that went to the host before this one: backward asks for it next.
        self.before: weakref.ref[TransferredTensor] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return 0 if self.host is not None else self.packed.nbytes

    def decompress(self) -> Tensor:
        """The tensor again, in the order of the current stream."""
        return self._lane.claim(self).decompress()


class SideStream:
    """A side stream for packing and moving.

    ahead  how many parcels are fetched from the host before they are asked for
    """

    def __init__(self, streams: Streams, *, ahead: int = 2) -> None:
        self._streams = streams
        self._ahead = ahead
        self._last: weakref.ref[TransferredTensor] | None = None

    def pack(
        self, t: Tensor, make: Callable[[], Packed], *, offload: bool = False
    ) -> TransferredTensor:
        """Run `make`, which packs `t`, on the side stream; `t` may be dropped at once."""
        streams, side = self._streams, self._streams.side()
        streams.wait(side, streams.record(streams.current()))
        with streams.use(side):
            packed = make()
            host = self._to_host(packed.payload) if offload else None
        streams.keep(t, side)
        done = streams.record(side)
        if host is None:
            return TransferredTensor(self, packed, packed.payload, done)
        nothing = torch.empty(0, dtype=torch.uint8)
        parcel = TransferredTensor(self, replace(packed, payload=nothing), None, done)
        parcel.host = host
        parcel.before, self._last = self._last, weakref.ref(parcel)
        return parcel

    def claim(self, parcel: TransferredTensor) -> Packed:
        """The packed tensor, for use on the current stream."""
        if parcel.payload is None:
            self._fetch(parcel)
        payload = parcel.payload
        assert payload is not None
        current = self._streams.current()
        self._streams.wait(current, parcel.done)
        # It was allocated on the side stream, and the current one is about to read it.
        self._streams.keep(payload, current)
        if parcel.host is not None:
            parcel.payload = None  # what is on the host need not be here, too
            self._fetch_before(parcel)
        return replace(parcel.packed, payload=payload)

    def _to_host(self, payload: Tensor) -> Tensor:
        host = self._streams.host_room(payload.numel())
        host.copy_(payload, non_blocking=True)
        return _known_as(payload, host, payload.device)

    def _fetch(self, parcel: TransferredTensor) -> None:
        assert parcel.host is not None
        streams, side = self._streams, self._streams.side()
        with streams.use(side):
            room = torch.empty_like(parcel.host, device=streams.device, pin_memory=False)
            room.copy_(parcel.host, non_blocking=True)
        parcel.payload = _known_as(parcel.host, room, streams.device)
        parcel.done = streams.record(side)

    def _fetch_before(self, parcel: TransferredTensor) -> None:
        reference = parcel.before
        for _ in range(self._ahead):
            earlier = reference() if reference is not None else None
            if earlier is None:
                return
            if earlier.payload is None:
                self._fetch(earlier)
            reference = earlier.before


class SideStreams:
    """A lane for every device that has streams, made when its first tensor comes."""

    def __init__(
        self, *, ahead: int = 2, streams: Callable[[torch.device], Streams] | None = None
    ) -> None:
        self._ahead = ahead
        self._streams = streams
        self._by_device: dict[torch.device, SideStream] = {}

    def of(self, device: torch.device) -> SideStream | None:
        """The lane of a device; None where everything runs in one order anyway."""
        if device.type != "cuda" and self._streams is None:
            return None
        lane = self._by_device.get(device)
        if lane is None:
            lane = SideStream((self._streams or Cuda)(device), ahead=self._ahead)
            self._by_device[device] = lane
        return lane


def _known_as(old: Tensor, new: Tensor, device: torch.device) -> Tensor:
    """`new` holds the bytes of `old`: a backend that knows what it made need not look again."""
    carry = getattr(select(device), "carry", None)
    known: Tensor = new if carry is None else carry(old, new)
    return known
