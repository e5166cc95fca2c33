"""What a lane asks of a device's streams: the few calls whose order matters.

A stream runs what is queued on it in order; two streams know nothing of each other except
through events. Memory belongs to the stream that was current when it was allocated: once
freed it is handed out again in that stream's order, so a tensor that another stream still
reads must be marked for it (`keep`). `Cuda` does this for real; the tests have streams that
only pretend, and complain about every use that an event does not order.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor


class Streams(Protocol):
    """The streams of one device. Streams and events are whatever the device calls so."""

    device: torch.device

    def current(self) -> Any:
        """The stream that work is queued on now."""

    def side(self) -> Any:
        """A second stream, always the same."""

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Work inside is queued on `stream`, and memory allocated for it."""

    def record(self, stream: Any) -> Any:
        """An event behind everything queued on `stream` so far."""

    def wait(self, stream: Any, event: Any) -> None:
        """What is queued on `stream` from now on runs after the event. The host goes on."""

    def keep(self, t: Tensor, stream: Any) -> None:
        """Do not hand out the tensor's memory before what `stream` has queued is done."""

    def host_room(self, count: int) -> Tensor:
        """Bytes on the host that the device can copy to and from while the host goes on."""


class Cuda:
    """Streams of a CUDA or ROCm device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def side(self) -> torch.cuda.Stream:
        return self._side

    def use(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event: torch.cuda.Event = stream.record_event()
        return event

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        stream.wait_event(event)

    def keep(self, t: Tensor, stream: torch.cuda.Stream) -> None:
        t.record_stream(stream)

    def host_room(self, count: int) -> Tensor:
        # Pinned memory comes from a cache that waits for copies in flight before reuse.
        return torch.empty(count, dtype=torch.uint8, pin_memory=True)
