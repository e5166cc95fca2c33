"""Plain torch on any device: the oracle for every other backend, and the fallback.

Slow and obvious on purpose. One module a codec, each following docs/format.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from encke.ops.quantiser import Quantiser


class Reference:
    """The reference kernels; see `encke.ops.backend.Backend`."""

    name = "reference"
    on_host: frozenset[str] = frozenset()

    def fixed_encode(self, x: Tensor, q: Quantiser) -> Tensor:
        from encke.ops.reference import fixed

        return fixed.encode(x, q)

    def fixed_decode(
        self, payload: Tensor, count: int, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        from encke.ops.reference import fixed

        values = fixed.decode(payload, count, dtype)
        return values if out is None else out.copy_(values)

    def entropy_encode(self, x: Tensor, q: Quantiser) -> Tensor:
        from encke.ops.reference import entropy

        return entropy.encode(x, q)

    def entropy_decode(
        self, payload: Tensor, count: int, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        from encke.ops.reference import entropy

        values = entropy.decode(payload, count, dtype)
        return values if out is None else out.copy_(values)

    def predict_encode(
        self,
        x: Tensor,
        shape: tuple[int, ...],
        q: Quantiser,
        plan: tuple[int, ...],
        valid: Tensor | None = None,
    ) -> Tensor:
        from encke.ops.reference import predict

        return predict.encode(x, shape, q, plan, valid)

    def predict_decode(
        self,
        payload: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        out: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        from encke.ops.reference import predict

        values = predict.decode(payload, shape, dtype, valid)
        return values if out is None else out.copy_(values.view(shape))

    def bitmap_encode(
        self, x: Tensor, shape: tuple[int, ...], domain: Tensor | None = None
    ) -> Tensor:
        from encke.ops.reference import bitmap

        return bitmap.encode(x, shape, domain)

    def bitmap_decode(
        self, payload: Tensor, shape: tuple[int, ...], domain: Tensor | None = None
    ) -> Tensor:
        from encke.ops.reference import bitmap

        return bitmap.decode(payload, shape, domain)

    def count_not_finite(self, x: Tensor, samples: int) -> int:
        from encke.ops.reference import holes

        return holes.count_not_finite(x, samples)

    def mark_values(self, x: Tensor, fill: tuple[float, ...]) -> tuple[Tensor, int]:
        from encke.ops.reference import holes

        return holes.mark_values(x, fill)

    def shared_pattern(self, x: Tensor, valid: Tensor) -> int | None:
        from encke.ops.reference import holes

        return holes.shared_pattern(x, valid)

    def put_pattern(self, y: Tensor, where: Tensor, bits: int) -> int:
        from encke.ops.reference import holes

        return holes.put_pattern(y, where, bits)

    def group_encode(self, x: Tensor, bits: int, stochastic: bool, seed: int) -> Tensor:
        from encke.ops.reference import group

        return group.encode(x, bits, stochastic, seed)

    def group_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        from encke.ops.reference import group

        return group.decode(payload, count, dtype)

    def mask_encode(self, x: Tensor) -> Tensor:
        from encke.ops.reference import mask

        return mask.encode(x)

    def mask_decode(self, payload: Tensor, count: int) -> Tensor:
        from encke.ops.reference import mask

        return mask.decode(payload, count)

    def positive_encode(self, x: Tensor) -> Tensor:
        from encke.ops.reference import sides

        return sides.positive_encode(x)

    def positive_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        from encke.ops.reference import sides

        return sides.positive_decode(payload, count, dtype)

    def affine_where(
        self, x: Tensor, payload: Tensor, gain: Tensor, shift: Tensor, inner: int
    ) -> Tensor:
        from encke.ops.reference import sides

        return sides.affine_where(x, payload, gain, shift, inner)

    def gated_close(
        self, x: Tensor, payload: Tensor, gain: Tensor, shift: Tensor, inner: int
    ) -> tuple[Tensor, Tensor]:
        from encke.ops.reference import gated

        return gated.close(x, payload, gain, shift, inner)

    def gated_open(
        self,
        values: Tensor,
        payload: Tensor,
        scales: tuple[Tensor, Tensor, Tensor],
        inner: int,
        shape: tuple[int, ...],
    ) -> Tensor:
        from encke.ops.reference import gated

        return gated.open_(values, payload, scales, inner, shape)

    def gated_add(
        self,
        to: Tensor,
        values: Tensor,
        payload: Tensor,
        scales: tuple[Tensor, Tensor],
        inner: int,
    ) -> None:
        from encke.ops.reference import gated

        gated.add(to, values, payload, scales, inner)

    def index_encode(self, x: Tensor) -> Tensor:
        from encke.ops.reference import index

        return index.encode(x)

    def index_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        from encke.ops.reference import index

        return index.decode(payload, count, dtype)


def load() -> Reference:
    return Reference()
