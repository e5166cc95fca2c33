"""Compressing on a device without waiting for it: how long the result is comes out later.

An encoder on a GPU knows the length of its payload when it is done; the host, which has gone
on queueing work, would have to wait to hear it. So the payload goes into a buffer of the size
that the last one of its kind needed, and nobody asks until there is an answer. Where the
buffer was too small, nothing is lost: the tensor is still there and is encoded again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from encke.bound import Absolute, Bound, resolve
from encke.codec import layout, registry
from encke.codec.contract import Request
from encke.codec.packed import Packed
from encke.codec.quantised import promised_error, quantiser_for
from encke.ops.select import select


class Payload(Protocol):
    """A payload on its way: see `encke.ops.triton.later.Later`."""

    @property
    def room(self) -> int: ...

    def ready(self) -> bool: ...

    def settle(self) -> Tensor: ...


class Unsettled:
    """A tensor that is compressed, or about to be; `settle` gives it as `Packed`.

    about  what is known of it: everything but the payload
    told   called with it when it is settled
    """

    __slots__ = ("__weakref__", "_packed", "_payload", "about", "told")

    def __init__(self, about: Packed, payload: Payload) -> None:
        self.about = about
        self.told: Callable[[Packed], None] | None = None
        self._payload: Payload | None = payload
        self._packed: Packed | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that it takes; until it is settled, the room that it was given."""
        if self._payload is None:
            assert self._packed is not None
            return self._packed.nbytes
        return self.about.nbytes + self._payload.room

    def ready(self) -> bool:
        """Whether `settle` would not have to wait."""
        return self._payload is None or self._payload.ready()

    def settle(self) -> Packed:
        """The compressed tensor; waits for the device if it must."""
        if self._packed is None:
            assert self._payload is not None
            self._packed = replace(self.about, payload=self._payload.settle())
            self._payload = None
            if self.told is not None:
                self.told(self._packed)
        return self._packed

    def decompress(self) -> Tensor:
        return self.settle().decompress()


def can_go_on(device: torch.device, codec: str, bound: Bound) -> bool:
    """Whether `compress_without_waiting` can: the backend does not wait (Triton's `fixed`),
    and the bound does not depend on the values, which would have to be looked at first."""
    return (
        codec == "fixed"
        and isinstance(bound, Absolute)
        and hasattr(select(device), "fixed_encode_soon")
    )


def compress_without_waiting(
    x: Tensor, bound: Bound, *, codec: str, dither: bool, seed: int, keep_nonzero: bool
) -> Unsettled:
    """What `compress` does, without waiting for x's device, where `can_go_on`."""
    layout.require_plain(x)
    chosen = registry.by_name(codec)
    chosen.check(x.dtype, bound)
    x = x.detach().resolve_neg()
    order = layout.memory_order(x)
    inner = layout.to_memory(x, order)
    kernels = select(x.device)
    request = Request(
        promise=resolve(bound, inner),
        backend=kernels,
        dither=dither,
        seed=seed,
        keep_nonzero=keep_nonzero,
    )
    q = quantiser_for(request, x.dtype, codec=codec)
    about = Packed(
        codec=codec,
        bound=bound,
        promised=promised_error(request.promise),
        dtype=x.dtype,
        shape=tuple(x.shape),
        order=order,
        payload=torch.empty(0, dtype=torch.uint8, device=x.device),
    )
    return Unsettled(about, kernels.fixed_encode_soon(inner, q))  # type: ignore[attr-defined]
