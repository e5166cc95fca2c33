"""What a backend offers: one pair of kernels for each codec that has kernels.

Kernels take contiguous tensors in memory order and give `uint8` payloads as
docs/format.md specifies them, on the tensor's device. Decoders never trust a
payload: whatever its bytes, they return a tensor or raise `CorruptStreamError`. Where a
decoder takes `out`, a contiguous tensor of that size and dtype, it fills and returns it.
Where one takes `valid`, only positions where that is true have values.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from encke.ops.quantiser import Quantiser


class Backend(Protocol):
    """The kernels of one backend. `reference` is the oracle for all others."""

    name: str
    #: Codecs whose work is done on the host although the tensor is not there.
    on_host: frozenset[str]

    def fixed_encode(self, x: Tensor, q: Quantiser) -> Tensor: ...
    def fixed_decode(
        self, payload: Tensor, count: int, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor: ...

    def entropy_encode(self, x: Tensor, q: Quantiser) -> Tensor: ...
    def entropy_decode(
        self, payload: Tensor, count: int, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor: ...

    def predict_encode(
        self,
        x: Tensor,
        shape: tuple[int, ...],
        q: Quantiser,
        plan: tuple[int, ...],
        valid: Tensor | None = None,
    ) -> Tensor: ...
    def predict_decode(
        self,
        payload: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        out: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor: ...

    def bitmap_encode(
        self, x: Tensor, shape: tuple[int, ...], domain: Tensor | None = None
    ) -> Tensor: ...
    def bitmap_decode(
        self, payload: Tensor, shape: tuple[int, ...], domain: Tensor | None = None
    ) -> Tensor: ...

    def count_not_finite(self, x: Tensor, samples: int) -> int:
        """How many of about `samples` values, or of all if there are fewer, are not finite."""
        ...

    def mark_values(self, x: Tensor, fill: tuple[float, ...]) -> tuple[Tensor, int]:
        """Where `x` is finite and none of `fill`, and how often."""
        ...

    def shared_pattern(self, x: Tensor, valid: Tensor) -> int | None:
        """The bits, as a signed integer, of all that `x` has elsewhere; None if they differ."""
        ...

    def put_pattern(self, y: Tensor, where: Tensor, bits: int) -> int:
        """Writes the bits wherever `where` is true; how often that was."""
        ...

    def group_encode(self, x: Tensor, bits: int, stochastic: bool, seed: int) -> Tensor: ...
    def group_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor: ...

    def mask_encode(self, x: Tensor) -> Tensor: ...
    def mask_decode(self, payload: Tensor, count: int) -> Tensor: ...

    def positive_encode(self, x: Tensor) -> Tensor: ...
    def positive_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor: ...
    def affine_where(
        self, x: Tensor, payload: Tensor, gain: Tensor, shift: Tensor, inner: int
    ) -> Tensor: ...

    def gated_close(
        self, x: Tensor, payload: Tensor, gain: Tensor, shift: Tensor, inner: int
    ) -> tuple[Tensor, Tensor]: ...
    def gated_open(
        self,
        values: Tensor,
        payload: Tensor,
        scales: tuple[Tensor, Tensor, Tensor],
        inner: int,
        shape: tuple[int, ...],
    ) -> Tensor: ...
    def gated_add(
        self,
        to: Tensor,
        values: Tensor,
        payload: Tensor,
        scales: tuple[Tensor, Tensor],
        inner: int,
    ) -> None: ...

    def index_encode(self, x: Tensor) -> Tensor: ...
    def index_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor: ...
