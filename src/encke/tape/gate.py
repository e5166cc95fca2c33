"""Leaving out what a ReLU blocks.

A batch norm whose output goes into a ReLU and nowhere else, or into a sum that does, gets no
gradient where the ReLU blocks. The gradients of its scale and offset then do not ask for its
input there, nor does the convolution behind the ReLU. Only what the norm takes out of the
gradient along its input does, dx = … - x̂ · mean(dy · x̂), and that product is small. So the
values that pass are kept within the bound, and each channel's mean stands for the others.
`left_out` says what that does to dx, and the policy takes it off its budget.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from encke.codec import layout
from encke.ops.select import select
from encke.tape.channels import Channels
from encke.tape.kept import Sides
from encke.tape.ledger import Held, Ledger


class Gate:
    """Which values of a norm's input a ReLU lets through, and what stands for the others."""

    __slots__ = ("_channels", "_held", "_inner", "_other", "_shape", "_sides", "_spread")

    def __init__(self, sides: Sides, t: Tensor, channels: Channels, ledger: Ledger) -> None:
        order = sides.order
        place = order.index(1)
        self._sides, self._channels = sides, channels
        self._shape = tuple(t.shape[d] for d in order)
        self._inner = math.prod(self._shape[place + 1 :])
        self._other = self._spread = torch.empty(0)
        self._held = Held(ledger, t.shape[1] * t.element_size())

    @property
    def values(self) -> int:
        """How many there are, blocked ones among them."""
        return math.prod(self._shape)

    @staticmethod
    def fits(sides: Sides, t: Tensor) -> bool:
        """Whether the bits lie as the values do."""
        return sides.order == layout.memory_order(t) and sides.shape == tuple(t.shape)

    def close(self, t: Tensor) -> Tensor:
        """The normalised values that pass, without gaps."""
        normal = self._channels.gain, self._channels.shift
        memory = layout.to_memory(t, self._sides.order)
        values, sums = select(t.device).gated_close(
            memory, self._sides.gate_bits(), *normal, self._inner
        )
        # Over all of a channel the normalised values have mean zero and mean square one.
        every = memory.numel() / sums.shape[1]
        blocked = (every - sums[0]).clamp(min=1)
        mean = -sums[1] / blocked
        self._other = mean.to(t.dtype)
        self._spread = (every - sums[2] - blocked * mean**2).clamp(min=0)
        return values

    def open(self, values: Tensor) -> Tensor:
        """The norm's input, from the normalised values that pass."""
        gain, shift = self._channels.back
        return self.open_as(values, gain, shift, torch.addcmul(shift, self._other, gain))

    def open_as(self, values: Tensor, gain: Tensor, shift: Tensor, other: Tensor) -> Tensor:
        """Channel by channel, values · gain + shift where they pass and `other` elsewhere."""
        memory = select(values.device).gated_open(
            values, self._sides.gate_bits(), (gain, shift, other), self._inner, self._shape
        )
        return layout.from_memory(memory, self._sides.order)

    def is_of(self, sides: Sides) -> bool:
        """Whether it is this ReLU's."""
        return self._sides is sides

    def blocked(self) -> Tensor:
        """Where no value passes."""
        return self._sides.mask().logical_not_()

    def left_out(self, scale: Tensor | None, returned: Any) -> float:
        """‖Δdx‖² / ‖dx‖² that follows from what is not kept.

        scale     the norm's weight
        returned  the gradients of the norm's input and of its weight
        """
        through, weight = returned[0], returned[1]
        if through is None or weight is None or scale is None:
            return 0.0
        whole = float(torch.linalg.vector_norm(through, dtype=torch.float32).double() ** 2)
        every = through.numel() / weight.numel()
        along = scale.double() * self._channels.gain.double() * weight.double() / every
        return float((along**2 * self._spread).sum()) / whole if whole > 0 else 0.0
