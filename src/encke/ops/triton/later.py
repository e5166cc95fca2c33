"""A payload whose length the device knows already and the host does not yet."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: Of a buffer this share may stay unused before its payload moves to one of its own size.
_SLACK = 1 / 16


class Later:
    """What an encoder has been asked to write, before anybody has waited for it.

    `settle` waits, once, and gives the payload. If it did not fit, nothing was written beyond
    the buffer, and the encoder runs again with the room it is now known to need; so the
    encoder's input must stay as it is until then.

    needed   on the device: the length in bytes
    """

    __slots__ = ("_again", "_arrived", "_buffer", "_host", "_settled", "_then", "needed")

    def __init__(self, buffer: Tensor, needed: Tensor, again: Callable[[int], Later]) -> None:
        self._buffer: Tensor | None = buffer
        self.needed = needed
        self._again: Callable[[int], Later] | None = again
        self._then: Callable[[Tensor], Tensor] | None = None
        self._settled: Tensor | None = None
        self._host: Tensor | None = None
        self._arrived: torch.Event | None = None
        if needed.is_cuda:
            # The length travels on its own while other work is queued behind it.
            self._host = torch.empty(1, dtype=torch.int64, pin_memory=True)
            self._host.copy_(needed.view(1), non_blocking=True)
            self._arrived = torch.Event(needed.device)
            self._arrived.record()

    def then(self, change: Callable[[Tensor], Tensor]) -> Later:
        """Let `change` have the payload before anybody else does, after those before it."""
        before = self._then
        self._then = change if before is None else lambda payload: change(before(payload))
        return self

    @property
    def room(self) -> int:
        """Bytes of the buffer; once settled, of the payload."""
        buffer = self._buffer if self._settled is None else self._settled
        assert buffer is not None
        return buffer.numel()

    def ready(self) -> bool:
        """Whether `settle` would not have to wait."""
        return self._settled is not None or self._arrived is None or self._arrived.query()

    def settle(self) -> Tensor:
        """The payload, of its exact length."""
        if self._settled is None:
            payload = self._finish()
            self._settled = payload if self._then is None else self._then(payload)
            self._buffer = self._again = self._then = self._host = self._arrived = None
        return self._settled

    def _finish(self) -> Tensor:
        assert self._buffer is not None
        assert self._again is not None
        if self._arrived is not None:
            assert self._host is not None
            self._arrived.synchronize()
            length = int(self._host)
        else:
            length = int(self.needed)
        capacity = self._buffer.numel()
        if length > capacity:
            return self._again(length).settle()
        payload = self._buffer[:length]
        return payload if capacity - length <= capacity * _SLACK else payload.clone()
