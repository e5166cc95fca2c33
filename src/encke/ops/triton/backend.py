"""The Triton backend: each codec's kernels, what is known of payloads, and room for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from encke.ops.quantiser import Quantiser
from encke.ops.reference import Reference
from encke.ops.triton import fixed, group, host, index, mask
from encke.ops.triton.later import Later
from encke.ops.triton.made import Made
from encke.ops.triton.room import Rooms


class Triton:
    """The Triton kernels; see `encke.ops.backend.Backend`.

    Encoders wait for the device once, to learn how long the payload has become; those whose
    name ends in `_later` do not wait at all, and `Later.settle` does when it suits. Decoders
    wait only for payloads that were not made here, to check them.
    """

    name = "triton"
    on_host = frozenset({"entropy", "predict", "lossless", "zfp"})

    def __init__(self) -> None:
        self._made = Made()
        self._rooms = Rooms()

    def fixed_encode(self, x: Tensor, q: Quantiser) -> Tensor:
        return self.fixed_encode_soon(x, q).settle()

    def fixed_encode_soon(self, x: Tensor, q: Quantiser) -> Later:
        """The payload, without waiting, with as much room as the last of its kind needed."""
        key = ("fixed", x.numel(), x.dtype, q.kind)
        most = fixed.most_bytes(x.numel(), x.dtype)
        later = self.fixed_encode_later(x, q, capacity=self._rooms.of(key, most))

        def settled(payload: Tensor) -> Tensor:
            self._rooms.note(key, payload.numel())
            return payload

        return later.then(settled)

    def fixed_encode_later(
        self,
        x: Tensor,
        q: Quantiser,
        *,
        capacity: int | None = None,
        statistics: Tensor | None = None,
    ) -> Later:
        """The payload, without waiting. `statistics` is filled on the way, see
        `encke.ops.triton.statistics`; `capacity` is None for what always suffices."""
        later = fixed.encode(x, q, capacity=capacity, statistics=statistics)
        return later.then(self._noting("fixed", x.numel(), x.dtype, q))

    def fixed_decode(
        self, payload: Tensor, count: int, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        known = self._facts(payload, "fixed", count, dtype)
        return fixed.decode(payload, count, dtype, known=known, out=out)

    def entropy_encode(self, x: Tensor, q: Quantiser) -> Tensor:
        return host.backend().entropy_encode(x.cpu(), q).to(x.device)

    def entropy_decode(
        self, payload: Tensor, count: int, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        values = host.backend().entropy_decode(payload.cpu(), count, dtype)
        return host.returned(values, payload.device, out)

    def predict_encode(
        self,
        x: Tensor,
        shape: tuple[int, ...],
        q: Quantiser,
        plan: tuple[int, ...],
        valid: Tensor | None = None,
    ) -> Tensor:
        on_host = None if valid is None else valid.cpu()
        return host.backend().predict_encode(x.cpu(), shape, q, plan, on_host).to(x.device)

    def predict_decode(
        self,
        payload: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        out: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        on_host = None if valid is None else valid.cpu()
        values = host.backend().predict_decode(payload.cpu(), shape, dtype, None, on_host)
        return host.returned(values, payload.device, out)

    def bitmap_encode(
        self, x: Tensor, shape: tuple[int, ...], domain: Tensor | None = None
    ) -> Tensor:
        within = None if domain is None else domain.cpu()
        return host.backend().bitmap_encode(x.cpu(), shape, within).to(x.device)

    def bitmap_decode(
        self, payload: Tensor, shape: tuple[int, ...], domain: Tensor | None = None
    ) -> Tensor:
        within = None if domain is None else domain.cpu()
        return host.backend().bitmap_decode(payload.cpu(), shape, within).to(payload.device)

    # Torch's own kernels do these on any device.
    def count_not_finite(self, x: Tensor, samples: int) -> int:
        return Reference().count_not_finite(x, samples)

    def mark_values(self, x: Tensor, fill: tuple[float, ...]) -> tuple[Tensor, int]:
        return Reference().mark_values(x, fill)

    def shared_pattern(self, x: Tensor, valid: Tensor) -> int | None:
        return Reference().shared_pattern(x, valid)

    def put_pattern(self, y: Tensor, where: Tensor, bits: int) -> int:
        return Reference().put_pattern(y, where, bits)

    def group_encode(self, x: Tensor, bits: int, stochastic: bool, seed: int) -> Tensor:
        return self.group_encode_later(x, bits, stochastic, seed).settle()

    def group_encode_later(self, x: Tensor, bits: int, stochastic: bool, seed: int) -> Later:
        """The payload, without waiting; unless values are not finite or span too much, its
        length is known beforehand."""
        later = group.encode(x, bits, stochastic, seed)
        plain = group.plain_bytes(x.numel(), bits, x.dtype)
        noting = self._noting("group", x.numel(), x.dtype, bits)
        return later.then(lambda p: noting(p) if p.numel() == plain else p)

    def group_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        known = self._facts(payload, "group", count, dtype)
        return group.decode(payload, count, dtype, known=known)

    def mask_encode(self, x: Tensor) -> Tensor:
        return self._noting("mask", x.numel(), torch.bool, True)(mask.encode(x))

    def mask_decode(self, payload: Tensor, count: int) -> Tensor:
        return mask.decode(payload, count, known=self._is_mask(payload, count))

    def positive_encode(self, x: Tensor) -> Tensor:
        return self._noting("mask", x.numel(), torch.bool, True)(mask.positive_encode(x))

    def positive_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        known = self._is_mask(payload, count)
        return mask.positive_decode(payload, count, dtype, known=known)

    def affine_where(
        self, x: Tensor, payload: Tensor, gain: Tensor, shift: Tensor, inner: int
    ) -> Tensor:
        known = self._is_mask(payload, x.numel())
        return mask.affine_where(x, payload, gain, shift, inner, known=known)

    # Closing up needs the count of ones on the host: no kernel of its own yet.
    def gated_close(self, *of: Any) -> tuple[Tensor, Tensor]:
        return Reference().gated_close(*of)

    def gated_open(self, *of: Any) -> Tensor:
        return Reference().gated_open(*of)

    def gated_add(self, *of: Any) -> None:
        Reference().gated_add(*of)

    def index_encode(self, x: Tensor) -> Tensor:
        key = ("index", x.numel(), x.dtype, 0)
        most = index.most_bytes(x.numel(), x.dtype)
        payload = self.index_encode_later(x, capacity=self._rooms.of(key, most)).settle()
        self._rooms.note(key, payload.numel())
        return payload

    def index_encode_later(self, x: Tensor, *, capacity: int | None = None) -> Later:
        """The payload, without waiting; `capacity` is None for what always suffices."""
        later = index.encode(x, capacity=capacity)
        return later.then(self._noting("index", x.numel(), x.dtype, True))

    def index_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        known = self._facts(payload, "index", count, dtype) is not None
        return index.decode(payload, count, dtype, known=known)

    def carry(self, old: Tensor, new: Tensor) -> Tensor:
        """`new` holds the bytes that were in `old`: it need not be checked again."""
        return self._made.carry(old, new)

    def _noting(
        self, codec: str, count: int, dtype: torch.dtype, facts: Any
    ) -> Callable[[Tensor], Tensor]:
        return lambda payload: self._made.note(payload, (codec, count, dtype, facts))

    def _facts(self, payload: Tensor, codec: str, count: int, dtype: torch.dtype) -> Any | None:
        found = self._made.of(payload)
        if found is None or found[:3] != (codec, count, dtype):
            return None
        return found[3]

    def _is_mask(self, payload: Tensor, count: int) -> bool:
        return self._facts(payload, "mask", count, torch.bool) is not None
