"""Leaving out what a ReLU blocks.

A batch norm whose output goes into a ReLU and nowhere else, or into a sum that does, gets no
gradient where the ReLU blocks. The gradients of its scale and offset then do not ask for its
input there, nor does the convolution behind the ReLU. Only what the norm takes out of the
gradient along its input does, dx = … - x̂ · mean(dy · x̂), and that product is small. So the
values that pass are kept within the bound, and each channel's mean stands for the others.

What is missing would not be noise: along x̂ it has the same sign from step to step, and lets
weights grow or shrink that the norm makes free of scale. So as much as the blocked values
would have taken out along x̂ is taken out with those that pass (`straighten`), and dx stays
at right angles to x̂ and to one. `left_out` says what is changed in dx all the same, and the
policy takes it off its budget.

A ReLU's result is sieved in the same way where it is kept with its values: the bits, which its
backward needs anyway, say where the values lie, and what is packed has no zeros.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor

from encke.codec import layout
from encke.ops.select import select
from encke.tape.batch_norm.channels import Channels
from encke.tape.effects.rows import Rows
from encke.tape.effects.squares import square
from encke.tape.storage.byte_count import ByteCount, StoredBytes
from encke.tape.storage.sources import SignMask
from encke.tape.storage.stored_tensor import StoredTensor

_LEFT_OUT = 16  # rows of a batch for each of which what is left out is held, in a measured step
_MOST = 8.0  # times that blocked values may weigh those that pass: where hardly any pass


def can_gate(node: Any) -> bool:
    """Whether a norm takes anything out, and its backward gives what `straighten` needs."""
    return (
        node._saved_weight is not None
        and all(before is not None for before, _ in node.next_functions[:2])
        and getattr(node, "_saved_training", True)
    )


class Passing:
    """The values of a tensor that a ReLU lets through, closed up without gaps."""

    __slots__ = ("_inner", "_own", "_shape", "_sides")

    #: Whether the others are known to be zero.
    complete = False

    def __init__(self, sides: SignMask, t: Tensor) -> None:
        self._sides = sides
        self._shape = tuple(t.shape[d] for d in sides.order)
        self._inner = math.prod(self._shape)
        #: Gain and shift that make of what is kept what it stands for, if that is not the same.
        self._own: tuple[Tensor, Tensor] | None = None

    @property
    def values(self) -> int:
        """How many there are, blocked ones among them."""
        return math.prod(self._shape)

    @staticmethod
    def fits(sides: SignMask, t: Tensor) -> bool:
        """Whether the bits lie as the values do."""
        return sides.order == layout.memory_order(t) and sides.shape == tuple(t.shape)

    def is_of(self, sides: SignMask) -> bool:
        """Whether it is this ReLU's."""
        return self._sides is sides

    def blocked(self) -> Tensor:
        """Where no value passes."""
        return self._sides.mask().logical_not_()

    def pick(self, t: Tensor) -> Tensor:
        """Of any tensor of the same shape, in backward: what lies where values pass."""
        return self._closed(t, self._sides.gate_bits())

    def open_as(self, values: Tensor, gain: Tensor, shift: Tensor, other: Tensor) -> Tensor:
        """Channel by channel, values · gain + shift where they pass and `other` elsewhere."""
        if self._own is not None:
            gain, shift = gain * self._own[0], torch.addcmul(shift, gain, self._own[1])
        memory = select(values.device).gated_open(
            values, self._sides.gate_bits(), (gain, shift, other), self._inner, self._shape
        )
        return layout.from_memory(memory, self._sides.order)

    def _bits_now(self) -> Tensor:
        """The bits in forward, where they are not held for others."""
        bits = self._sides.bits
        return self._sides.gate_bits() if bits is None else bits

    def _closed(self, t: Tensor, bits: Tensor) -> Tensor:
        memory = layout.to_memory(t, self._sides.order)
        one, zero = (torch.full((1,), n, dtype=t.dtype, device=t.device) for n in (1.0, 0.0))
        return select(t.device).gated_close(memory, bits, one, zero, memory.numel())[0]


class ReluOutputMask(Passing):
    """A ReLU's own result: zero where it blocks."""

    __slots__ = ()
    complete = True

    def close(self, t: Tensor) -> Tensor:
        return self._closed(t, self._bits_now())

    def open(self, values: Tensor) -> Tensor:
        one, zero = (
            torch.full((1,), n, dtype=values.dtype, device=values.device) for n in (1.0, 0.0)
        )
        return self.open_as(values, one, zero, zero)


class BatchNormMask(Passing):
    """Which values of a norm's input a ReLU lets through, and what stands for the others."""

    __slots__ = ("_centre", "_channels", "_held", "_more", "_other", "sample")

    def __init__(
        self, sides: SignMask, t: Tensor, channels: Channels, ledger: ByteCount
    ) -> None:
        super().__init__(sides, t)
        self._channels = channels
        self._inner = math.prod(self._shape[sides.order.index(1) + 1 :])
        #: Channel by channel: the mean of blocked values and of those that pass, and how many
        #: times the squares of the one, about it, those of the other are.
        self._other = self._centre = self._more = torch.empty(0)
        self._held = StoredBytes(ledger, 3 * t.shape[1] * torch.float16.itemsize)
        #: What it leaves out of some rows, where that is measured.
        self.sample: LeftOutRows | None = None

    def close(self, t: Tensor) -> Tensor:
        """The normalised values that pass, without gaps."""
        normal = self._channels.gain, self._channels.shift
        memory = layout.to_memory(t, self._sides.order)
        values, sums = select(t.device).gated_close(
            memory, self._bits_now(), *normal, self._inner
        )
        # Over all of a channel the normalised values have mean zero and mean square one.
        every = memory.numel() / sums.shape[1]
        passing, blocked = sums[0].clamp(min=1), (every - sums[0]).clamp(min=1)
        centre, other = sums[1] / passing, -sums[1] / blocked
        about = (sums[2] - passing * centre**2).clamp(min=1e-3)
        missing = (every - sums[2] - blocked * other**2).clamp(min=0)
        self._other, self._centre = other.half(), centre.half()
        self._more = (missing / about).clamp(max=_MOST).half()
        return values

    def will_hold(self, gain: Tensor, shift: Tensor) -> None:
        """What is kept is not normalised: kept · gain + shift is, channel by channel."""
        self._own = gain, shift

    def open(self, values: Tensor) -> Tensor:
        """The norm's input, from what is kept of those that pass."""
        gain, shift = self._channels.back
        other = torch.addcmul(shift, self._other.to(gain.dtype), gain)
        return self.open_as(values, gain, shift, other)

    def hold_left_out(self, t: Tensor, ledger: ByteCount, *, seed: int) -> None:
        """Hold what is left out of some rows of `t`, after `straighten`."""
        rows = Rows.of(t, most=max(1, t.numel() // _LEFT_OUT), seed=seed)
        some = rows.cut(t.detach(), t.ndim)
        normal = self._channels.normalise(some)
        shape = (1, -1, *(1,) * (t.ndim - 2))
        other, centre, more = (
            one.to(normal.dtype).view(shape) for one in (self._other, self._centre, self._more)
        )
        passing = rows.cut(self._sides.mask(), t.ndim)
        self.sample = LeftOutRows(
            torch.where(passing, (centre - normal) * more, normal - other), rows, ledger
        )

    def left_out(self, scale: Tensor, returned: Any) -> float:
        """About ‖Δdx‖² / ‖dx‖² by what is not kept, after `straighten`.

        scale     the norm's weight
        returned  the gradients of the norm's input and of its weight
        """
        through, weight = returned[0], returned[1]
        if through is None or weight is None:
            return 0.0
        whole = square(through)
        every = through.numel() / weight.numel()
        # Of a channel's mean square one, this share lies about the two means.
        about = 1 + self._centre.double() * self._other.double()
        change = self._along(scale, weight, every).double() ** 2 * every * about
        change *= self._more.double()
        return float(change.sum()) / whole if whole > 0 else 0.0

    def straighten(self, values: Tensor, scale: Tensor, returned: Any) -> None:
        """Take out of dx, in place, what the blocked values would have taken out along x̂.

        values  what is kept of those that pass; the others as in `left_out`
        """
        through, weight = returned[0], returned[1]
        if through is None or weight is None:
            return
        memory = layout.in_memory(through, self._sides.order)
        pull = self._along(scale, weight, through.numel() / weight.numel())
        pull *= self._more.to(pull.dtype)
        gain, shift = -pull, pull * self._centre.to(pull.dtype)
        if self._own is not None:
            gain, shift = gain * self._own[0], torch.addcmul(shift, gain, self._own[1])
        select(values.device).gated_add(
            memory, values, self._sides.gate_bits(), (gain, shift), self._inner
        )
        if self.sample is not None and self.sample.part is not None:
            along = self._along(scale, weight, through.numel() / weight.numel())
            self.sample.put_back(through, along)

    def _along(self, scale: Tensor, weight: Tensor, every: float) -> Tensor:
        """What dx has along x̂ before the norm takes it out, by channel."""
        return scale * self._channels.gain * weight / every


class LeftOutRows:
    """What a gate leaves out of some rows of dx, in units of what dx has along x̂.

    part  which half of it the pass that runs is to have back; None for none
    """

    __slots__ = ("_codes", "_held", "_rows", "_step", "part")

    def __init__(self, left_out: Tensor, rows: Rows, ledger: ByteCount) -> None:
        self._step = max(float(left_out.abs().max()) / 127, 1e-30)
        self._codes = (left_out / self._step).round_().to(torch.int8)
        self._rows, self._held = rows, StoredBytes(ledger, self._codes.numel())
        self.part: int | None = None

    @property
    def halves(self) -> int:
        """How many parts there are: two, or where nothing can be divided one."""
        return min(2, self._codes.shape[self._divided])

    @property
    def _divided(self) -> int:
        """The dimension that is divided: samples, or the height of a single one."""
        return 0 if len(self._codes) > 1 or self._codes.ndim < 3 else 2

    @property
    def times(self) -> float:
        """How many times as much as a part the batch has."""
        return self._rows.times * self.halves

    def put_back(self, through: Tensor, along: Tensor) -> None:
        """Make this part of dx what it would be without the gate; in place."""
        assert self.part is not None
        size = self._codes.shape[self._divided] // self.halves
        some = self._divided, self.part * size, size
        scale = (along * self._step).view(1, -1, *(1,) * (through.ndim - 2))
        codes = self._codes.narrow(*some).to(through.dtype)
        rows = self._rows.cut(through, through.ndim)
        rows.narrow(*some).addcmul_(codes, scale, value=-1)


class DxCorrection:
    """A hook on a norm's node: `BatchNormMask.straighten`, where there is a mask."""

    __slots__ = ("_scale", "_slot")

    def __init__(self, slot: StoredTensor, scale: Tensor) -> None:
        # The slot lives as long as the node's saved tensors, the node maybe longer.
        self._slot, self._scale = weakref.ref(slot), scale.detach()

    def __call__(self, returned: Any, _received: Any) -> None:
        slot = self._slot()
        if slot is not None and isinstance(slot.gate, BatchNormMask):
            with torch.no_grad():
                slot.gate.straighten(slot.values_that_pass(), self._scale, returned)
