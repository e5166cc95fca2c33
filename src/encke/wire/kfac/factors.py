"""Kronecker factors: sums over a batch and their running averages, stacked by size.

A slot is one factor of one group of one unit. Slots of equal size lie in one tensor, so that
averaging, solving and packing are one call for all of them. Slots are numbered through, stack
after stack; `partner[i]` is the number of the other side's slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from encke.wire.kfac.rows import Rows
from encke.wire.kfac.unit import Side, Unit


class Stack:
    """Factors of one size: (slots, size, size), or (slots, size) for diagonals."""

    def __init__(self, side: Side, slots: int, *, first: int, like: Tensor) -> None:
        self.side = side
        self.slots = slice(first, first + slots)
        shape = (slots, side.size) if side.diagonal else (slots, side.size, side.size)
        self.sum = like.new_zeros(shape)
        self.mean = like.new_zeros(shape)

    def per_slot(self, values: Tensor) -> Tensor:
        """Numbers of all slots → those of this stack, shaped to be multiplied with it."""
        mine = values[self.slots].to(self.sum.dtype)
        return mine.view(-1, *[1] * (self.sum.dim() - 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Address:
    """Where the factor of one side of a unit lies."""

    stack: Stack
    inside: slice

    @property
    def slots(self) -> slice:
        """The numbers of its slots among all."""
        first = self.stack.slots.start
        return slice(first + self.inside.start, first + self.inside.stop)

    @property
    def sum(self) -> Tensor:
        return self.stack.sum[self.inside]

    @property
    def mean(self) -> Tensor:
        return self.stack.mean[self.inside]


class Factors:
    """The factors of all units.

    A factor of inputs is the mean of a aᵀ over rows; one of gradients is Σ g gᵀ over rows
    divided by the number of loss terms, with g of the summed loss. Their Kronecker product then
    is the Fisher of the mean loss, whatever the batch size. The running averages are corrected
    for their start: after one batch they are that batch.
    """

    def __init__(
        self, units: Sequence[Unit], *, decay: float, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.units = list(units)
        self.decay = decay
        self._sides: dict[tuple[int, bool], list[tuple[int, str]]] = {}
        for number, unit in enumerate(self.units):
            for name in ("rows", "columns"):
                side: Side = getattr(unit, name)
                self._sides.setdefault((side.size, side.diagonal), []).append((number, name))
        like = torch.empty(0, device=device, dtype=dtype)
        self.stacks: list[Stack] = []
        self.at: dict[tuple[int, str], Address] = {}
        first = 0
        for (size, diagonal), members in self._sides.items():
            slots = sum(self.units[number].groups for number, _ in members)
            stack = Stack(Side(size=size, diagonal=diagonal), slots, first=first, like=like)
            self.stacks.append(stack)
            inside = 0
            for number, name in members:
                stop = inside + self.units[number].groups
                self.at[number, name] = Address(stack=stack, inside=slice(inside, stop))
                inside = stop
            first += slots
        self.slots = first
        self._numbers = {unit: number for number, unit in enumerate(self.units)}
        self.partner = torch.empty(first, dtype=torch.int64)
        self.unit_of = torch.empty(first, dtype=torch.int64)
        self.is_input = torch.zeros(first, dtype=torch.bool)
        for number, unit in enumerate(self.units):
            rows, columns = (self.at[number, name].slots for name in ("rows", "columns"))
            self.partner[rows] = torch.arange(columns.start, columns.stop)
            self.partner[columns] = torch.arange(rows.start, rows.stop)
            self.unit_of[rows] = self.unit_of[columns] = number
            self.is_input[self.at[number, unit.input_side].slots] = True
        #: Loss terms and rows (by unit) that the sums have seen.
        self.terms = 0
        self.seen = [0] * len(self.units)
        #: How many batches each unit's averages have seen.
        self.updates = [0] * len(self.units)

    def sides(self, unit: Unit) -> tuple[Address, Address]:
        """Of the input, and of the output's gradient."""
        number = self._numbers[unit]
        other = "rows" if unit.input_side == "columns" else "columns"
        return self.at[number, unit.input_side], self.at[number, other]

    def add(self, unit: Unit, rows: Rows, *, scale: float) -> None:
        """Add one use of a unit; `scale` makes its gradient that of the summed loss."""
        of_input, of_gradient = self.sides(unit)
        if rows.counts is not None:
            of_input.sum.add_(rows.counts)
        elif rows.input is not None:
            _add_squares(of_input, rows.input, 1.0)
        _add_squares(of_gradient, rows.gradient, scale * scale)
        self.seen[self._numbers[unit]] += rows.number

    def clear(self) -> None:
        """Forget the sums."""
        for stack in self.stacks:
            stack.sum.zero_()
        self.terms = 0
        self.seen = [0] * len(self.units)

    def newest_weight(self, number: int) -> float:
        """With which the next batch enters a unit's averages, corrected for the start."""
        return (1 - self.decay) / (1 - self.decay ** (self.updates[number] + 1))

    def update(self, used: Sequence[bool]) -> None:
        """Move averages of used units towards the sums, which hold the batch's means."""
        weights = torch.tensor(
            [
                self.newest_weight(number) if is_used else 0.0
                for number, is_used in enumerate(used)
            ],
            dtype=torch.float64,
        )[self.unit_of]
        for stack in self.stacks:
            if bool((weights[stack.slots] > 0).any()):
                stack.mean.lerp_(stack.sum, stack.per_slot(weights).to(stack.mean.device))
        for number, is_used in enumerate(used):
            self.updates[number] += is_used

    def per_slot(self, values: Sequence[float]) -> Tensor:
        """A number for each unit → a number for each slot."""
        return torch.tensor(values, dtype=torch.float64)[self.unit_of]


def _add_squares(address: Address, rows: Tensor, scale: float) -> None:
    """Σ r rᵀ over the rows of each group, or its diagonal."""
    if address.stack.side.diagonal:
        address.sum.add_(rows.square().sum(1), alpha=scale)
    else:
        address.sum.baddbmm_(rows.transpose(1, 2), rows, alpha=scale)


def mean_trace(stack: Stack, values: Tensor) -> Tensor:
    """The mean of the diagonal of each slot of a stack."""
    if stack.side.diagonal:
        return values.mean(1)
    return values.diagonal(dim1=1, dim2=2).mean(1)
