"""A residual block's last norm, from what goes into the block and what comes out.

Where a block ends with out = relu(γ x̂ + β + added), and `added` follows from what is kept (the
output of the block before, or another norm on a shortcut), so does x̂ wherever the ReLU passes:
x̂ = (out - added - β) / γ. Only there does the norm need it (`masked`). So its input is not
kept at all, and `out`, which the next block's convolution asks for anyway, is kept a little
more exactly. The errors of both are in x̂, divided by γ: with small γ it does not pay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from encke.tape.autograd.nodes import leaf_behind, op_name
from encke.tape.batch_norm.channels import NORMS
from encke.tape.batch_norm.masked import BatchNormMask
from encke.tape.recompute.finder import RecomputeFinder
from encke.tape.recompute.norms import Affine, Passed
from encke.tape.storage.sources import SignMask, StoredSource, TensorSource
from encke.tape.storage.stored_tensor import StoredTensor

_STEEPEST = 4.0  # the largest mean of 1/γ² with which it is done


class ResidualNorm:
    """The sum of a residual block less what was added, where the ReLU behind it passes."""

    __slots__ = ("_added", "_gate", "_out")

    def __init__(
        self,
        out: StoredSource,
        added: TensorSource,
        affine: tuple[Tensor, Tensor],
        gate: BatchNormMask,
    ) -> None:
        scale, offset = affine
        self._out, self._added, self._gate = out, added, gate
        gate.will_hold(1 / scale, -offset / scale)

    def slots(self) -> Iterator[StoredTensor]:
        """The slots whose errors are in the values."""
        yield from self._out.slots()
        yield from self._added.slots()

    @property
    def out(self) -> StoredTensor:
        """What the block puts out."""
        return self._out.slot

    def gain_of(self, slot: StoredTensor) -> Tensor | None:
        """How much of an error of `slot` is in the sum, by channel; None if unknown."""
        if slot is self._out.slot or isinstance(self._added, StoredSource):
            return torch.ones(()) if slot.channels is None else None
        return self._added.gain if isinstance(self._added, Passed) else None

    def is_probed(self) -> bool:
        """Whether one of the slots hands out something else than it holds, for a probe."""
        return any(slot.noise is not None for slot in self.slots())

    def values(self) -> Tensor:
        """γ x̂ + β without gaps; one of the two is whole at a time."""
        out = self._out.slot
        sieved = out.gate is not None and out.noise is None
        total = out.values_that_pass() if sieved else self._gate.pick(self._out.get())
        rest = self._gate.pick(self._added.get())
        return torch.sub(total, rest, out=rest)


def added_to(node: Any, norm: Any, sides: SignMask) -> TensorSource | None:
    """What the sum `node` adds to the output of `norm`, if that follows from what is kept.

    sides  of the ReLU behind the sum; elsewhere the values do not matter
    """
    others = [(one, number) for one, number in node.next_functions if one is not norm]
    if node._saved_alpha != 1 or len(others) != 1 or others[0][0] is None:
        return None
    other, number = others[0]
    about = other._input_metadata[number]
    if tuple(about.shape) != sides.shape or about.dtype != sides.dtype:
        return None
    if op_name(other) == "Relu":
        before = RecomputeFinder.source(other, "result")
        slot = before.slot if isinstance(before, SignMask) else None
        if slot is not None:
            return StoredSource(slot)
        return RecomputeFinder().value_of(other, sides.shape)
    if op_name(other) in NORMS and not _waits(RecomputeFinder.source(other, "input")):
        found = RecomputeFinder().value_of(other, sides.shape)
        return found.behind(sides) if isinstance(found, Affine) else None
    return None


def _waits(source: TensorSource | None) -> bool:
    """Whether it is not yet known how a norm's input is kept."""
    return isinstance(source, StoredSource) and source.slot.waits


def affine_of(norm: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """A norm's γ and β, if dividing by γ does not make errors much larger."""
    scale = norm._saved_weight.detach().to(dtype)
    offset = leaf_behind(norm.next_functions[2][0])
    if offset is None or not bool(scale.square().reciprocal().mean() <= _STEEPEST):
        return None
    return scale, offset.detach().to(dtype)
