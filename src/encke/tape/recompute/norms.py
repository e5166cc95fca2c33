"""The output of a norm, and of a ReLU behind one, from the norm's input and its statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from encke.codec import layout
from encke.ops.select import select
from encke.tape.autograd.nodes import leaf_behind, op_name
from encke.tape.batch_norm.channels import statistics
from encke.tape.recompute.finder import RecomputeFinder, recipe
from encke.tape.storage.sources import RecomputedSource, SignMask, StoredSource, TensorSource


class Affine(RecomputedSource):
    """A batch norm with its statistics known: gain and shift for each channel.

    coefficients  gives both when they are needed
    own           the norm's weight and bias
    """

    __slots__ = ("_coefficients", "_own")

    def __init__(
        self,
        of: TensorSource,
        coefficients: Callable[[], tuple[Tensor, Tensor]],
        own: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> None:
        def compute(x: Tensor) -> Tensor:
            gain, shift = coefficients()
            channels = (1, -1) + (1,) * (x.ndim - 2)
            return torch.addcmul(
                shift.view(channels).to(x.dtype), x, gain.view(channels).to(x.dtype)
            )

        super().__init__(of, compute, "batch norm")
        self._coefficients, self._own = coefficients, own

    def behind(self, sides: SignMask) -> RecomputedSource:
        """The same with a ReLU after it, in one pass where memory allows."""
        plain, coefficients = self._compute, self._coefficients

        def compute(x: Tensor) -> Tensor:
            order = layout.memory_order(x)
            channel = order.index(1)
            inner = math.prod(x.shape[d] for d in order[channel + 1 :])
            bits = sides.bits
            gain, shift = coefficients()
            if bits is None or order != sides.order or gain.dtype != x.dtype:
                return _where(sides, plain(x))
            kernels = select(x.device)
            memory = layout.to_memory(x, order)
            y = kernels.affine_where(memory, bits, gain, shift, inner)
            return layout.from_memory(y, order)

        return Passed(self._of, compute, sides, self._own, f"mask of {self.how}")


class Passed(RecomputedSource):
    """A batch norm with a ReLU after it; from a gated slot in one pass."""

    __slots__ = ("_own", "_sides")

    def __init__(
        self,
        of: TensorSource,
        compute: Callable[[Tensor], Tensor],
        sides: SignMask,
        own: tuple[Tensor | None, Tensor | None],
        how: str,
    ) -> None:
        super().__init__(of, compute, how)
        self._sides, self._own = sides, own

    @property
    def gain(self) -> Tensor | None:
        """How much of an error of the norm's normalised input is in the values."""
        slot = self._of.slot if isinstance(self._of, StoredSource) else None
        normal = slot is not None and slot.channels is not None and slot.remainder is None
        return self._own[0] if normal else None

    def get(self) -> Tensor:
        slot = self._of.slot if isinstance(self._of, StoredSource) else None
        gain, shift = self._own
        gated = slot is not None and slot.gate is not None and slot.gate.is_of(self._sides)
        if not gated or slot is None or slot.noise is not None or gain is None or shift is None:
            return super().get()
        return slot.passed(gain, shift)


def _where(sides: SignMask, x: Tensor) -> Tensor:
    """x on the one side, zero on the other (not a product, which would keep a NaN)."""
    return torch.where(sides.mask(), x, torch.zeros((), dtype=x.dtype, device=x.device))


@recipe("Relu")
def _relu(d: RecomputeFinder, node: Any, shape: tuple[int, ...]) -> TensorSource | None:
    sides = d.source(node, "result")
    if not isinstance(sides, SignMask):
        return None
    parent = d.input_of(node, 0, shape)
    if parent is None:
        return None
    if isinstance(parent, Affine):
        return parent.behind(sides)

    return RecomputedSource(parent, lambda x: _where(sides, x), f"mask of {parent.how}")


def _offset(node: Any, edge: int, scale: Tensor | None) -> tuple[bool, Tensor | None]:
    """Whether a norm's bias is known, and the bias, which autograd has only as an edge."""
    if len(node.next_functions) > edge and node.next_functions[edge][0] is not None:
        leaf = leaf_behind(node.next_functions[edge][0])
        return leaf is not None, None if leaf is None else leaf.detach()
    return scale is None, None


@recipe("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm")
def _batch_norm(d: RecomputeFinder, node: Any, _shape: tuple[int, ...]) -> TensorSource | None:
    source = d.kept(node, "input") if d.arithmetic else None
    if source is None:
        return None
    scale = node._saved_weight
    known, offset = _offset(node, 2, scale)
    if not known:
        return None
    mean, spread = statistics(node, op_name(node))
    own = None if scale is None else scale.detach()

    def coefficients() -> tuple[Tensor, Tensor]:
        gain = spread if own is None else spread * own
        return gain, -mean * gain if offset is None else offset - mean * gain

    return Affine(source, coefficients, (own, offset))


@recipe("NativeLayerNorm")
def _layer_norm(d: RecomputeFinder, node: Any, _shape: tuple[int, ...]) -> TensorSource | None:
    source = d.kept(node, "input") if d.arithmetic else None
    if source is None:
        return None
    mean, spread = node._saved_result1.detach(), node._saved_result2.detach()
    scale, offset = node._saved_weight, node._saved_bias

    def compute(x: Tensor) -> Tensor:
        y = torch.addcmul((-mean * spread).to(x.dtype), x, spread.to(x.dtype))
        if scale is not None:
            y = y.mul_(scale.detach())
        return y if offset is None else y.add_(offset.detach())

    return RecomputedSource(source, compute, "layer norm")


@recipe("NativeGroupNorm")
def _group_norm(d: RecomputeFinder, node: Any, _shape: tuple[int, ...]) -> TensorSource | None:
    source = d.kept(node, "input") if d.arithmetic else None
    if source is None:
        return None
    known, offset = _offset(node, 2, node._saved_weight)
    if not known:
        return None
    groups, channels = node._saved_group, node._saved_C
    mean, spread = node._saved_result1.detach(), node._saved_result2.detach()
    # Gain and shift for each channel of each sample: the statistics are of groups of channels.
    gain = spread.repeat_interleave(channels // groups, 1)
    shift = (-mean * spread).repeat_interleave(channels // groups, 1)
    scale = node._saved_weight
    if scale is not None:
        gain, shift = gain * scale.detach(), shift * scale.detach()
    if offset is not None:
        shift = shift + offset

    def compute(x: Tensor) -> Tensor:
        shape = (*gain.shape, *(1,) * (x.ndim - 2))
        return torch.addcmul(shift.view(shape).to(x.dtype), x, gain.view(shape).to(x.dtype))

    return RecomputedSource(source, compute, "group norm")
