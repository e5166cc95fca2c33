"""How `predict` goes about one tensor (docs/format.md, section 8), chosen from a sample.

The choice is made of single IEEE operations and sums of integers, so that every backend
makes the same one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from encke.errors import UnsupportedError
from encke.ops.reference.predict_estimate import estimated_bits

VERBATIM, LORENZO, REGRESSION, INTERPOLATION = range(4)
AXES = 4

_SAMPLES = 512
POINTS = 4096
LORENZO_SAMPLES = 512
#: Lorenzo must promise fewer bits than this share of the interpolation's: samples vary.
CLEARLY = 0.985
_WEIGHTS = (8, 9, 4, 6, 10)
_SHARES = (64, 51, 41, 33, 32)
_MOST_STEPS = 80
_MOST_SHARE = 62
_COST_CEILING = 2.0**20
_MASK64 = 0xFFFF_FFFF_FFFF_FFFF

Extents = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """The mode of a stream, its bytes, and the share of all codes that a run has.

    >>> Plan(LORENZO, bytes([1, 3])).check((1, 4, 4, 4))
    >>> Plan(LORENZO, bytes([3, 3])).check((1, 4, 4, 4))
    Traceback (most recent call last):
        ...
    encke.errors.UnsupportedError: plan of mode 1 has the bytes [3, 3], which mean nothing here
    """

    mode: int
    data: bytes = b""
    share: int = 5

    def evenly(self) -> Plan:
        """The same plan with one step everywhere, so that dither has one variance."""
        if self.mode != INTERPOLATION:
            return self
        return replace(self, data=self.data[:1] + b"\0" + self.data[2:])

    @property
    def order(self) -> int:
        return self.data[0]

    @property
    def axes(self) -> int:
        return self.data[1]

    @property
    def side(self) -> int:
        return self.data[2]

    @property
    def difference(self) -> bool:
        return bool(self.data[0] & 1)

    @property
    def steep(self) -> bool:
        """Whether holes are filled with more of the slope beside them."""
        return bool(self.data[0] & 2)

    @property
    def fill_axes(self) -> int:
        """The axes along which holes are filled, a bit for each."""
        return self.data[0] >> 4

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Axis and weight of each halving, the finest first."""
        return [(step & 3, step >> 2) for step in self.data[2:]]

    def fineness(self, halving: int) -> int:
        """How many 64ths of the step the lattice of a halving has."""
        decay = self.data[1]
        return _SHARES[min(halving // decay, 4)] if decay else 64

    def check(self, extents: Extents, *, holes: bool = False) -> None:
        """Raise `UnsupportedError` if no stream of these extents has this plan."""
        data = self.data
        if self.share > _MOST_SHARE:
            raise UnsupportedError(
                f"plan has runs of 2^-{self.share}, at most 2^-{_MOST_SHARE}"
            )
        if self.mode == VERBATIM:
            good = not data
        elif 0 in extents:  # without values there is nothing to predict
            good = False
        elif self.mode == INTERPOLATION:
            good = 2 <= len(data) <= _MOST_STEPS + 2
            good = good and (not data[0] & 0x0D if holes else data[0] <= 1)
            left = list(extents)
            for axis, weight in self.steps if good else []:
                good = good and weight <= 15 and left[axis] >= 2
                left[axis] = -(-left[axis] // 2)
        else:
            good = (
                self.mode in (LORENZO, REGRESSION)
                and len(data) == (2 if self.mode == LORENZO else 3)
                and 1 <= data[0] <= 2
                and 1 <= data[1] <= 3
                and (self.mode == LORENZO or 2 <= data[2] <= 64)
                and not (holes and (self.mode == REGRESSION or data[0] == 2))
            )
        if not good:
            raise UnsupportedError(
                f"plan of mode {self.mode} has the bytes {list(data)}, which mean nothing here"
            )


def extents_of(shape: tuple[int, ...]) -> Extents:
    """Four extents: leading dimensions merged, or ones put before.

    >>> extents_of((2, 3, 4, 5, 6)), extents_of((7,))
    ((6, 4, 5, 6), (1, 1, 1, 7))
    """
    padded = (1,) * max(0, AXES - len(shape)) + tuple(shape)
    lead = math.prod(padded[: len(padded) - AXES + 1])
    a, b, c = padded[len(padded) - AXES + 1 :]
    return lead, a, b, c


def choose(x: Tensor, extents: Extents, step: Tensor) -> Plan:
    """The plan for the values `x`, flat and in the precision of their arithmetic."""
    halved, bits, _ = interpolation(x, extents, step, _sampled)
    if bits > 0.25:
        halved = replace(halved, share=3)
    if bits < 1.0:
        return halved
    lorenzo, lorenzo_bits = _lorenzo(x, extents, step)
    return lorenzo if lorenzo_bits < CLEARLY * bits else halved


@functools.cache
def _points() -> Tensor:
    """Sixteen random bits for each axis of each sampled position."""
    rows = []
    for k in range(POINTS):
        z = ((k + 1) * 0x9E3779B97F4A7C15) & _MASK64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
        z ^= z >> 31
        rows.append([z >> (16 * axis) & 0xFFFF for axis in range(AXES)])
    return torch.tensor(rows, dtype=torch.int64)


def indices(axis: int, extent: int, many: int, device: torch.device) -> Tensor:
    share = _points()[:many, axis].to(device)
    return (extent >> 16) * share + (((extent & 0xFFFF) * share) >> 16)


def strides(extents: Extents) -> list[int]:
    return [math.prod(extents[d + 1 :]) for d in range(AXES)]


def _costs(residual: Tensor, scale: Tensor) -> Tensor:
    """Residuals in eighths of a step, as integers, cut off at a ceiling."""
    size = residual.abs() * scale
    return torch.where(size < _COST_CEILING, size, _COST_CEILING).to(torch.int64)


class Candidate(NamedTuple):
    """A plan, the bits for a value that it should take, and the axes along which values are
    alike, a bit for each."""

    plan: Plan
    bits: float
    near: int


_Sampler = Callable[[Tensor, list[int], list[int], int, int], tuple[Tensor, Tensor, Tensor]]


def interpolation(x: Tensor, extents: Extents, step: Tensor, sampler: _Sampler) -> Candidate:
    scale = 1 / step * 8
    grid, stride = list(extents), strides(extents)
    steps: list[int] = []
    decay, bits, left, near = 0, 0.0, 1.0, 0
    costs: dict[int, int] = {}
    while len(steps) < _MOST_STEPS:
        size = math.prod(grid)
        many = min(max(size // 64, 64), _SAMPLES)
        best: tuple[int, int, int, int] | None = None  # compared cost, cost, axis, weight
        plain, code_bits, plain_bits = 0, 0.0, 0.0
        for axis in range(AXES):
            if grid[axis] < 2:
                continue
            value, pair, outer = sampler(x, grid, stride, axis, many)
            count = value.numel()
            if count == 0:
                continue
            found = False
            for weight in _WEIGHTS:
                predicted = pair * (weight / 16) + outer * ((8 - weight) / 16)
                cost = _costs(value - predicted, scale)
                raw = int(cost.sum()) * many // count
                if not steps and weight == 8:
                    costs[axis] = raw
                compared = raw + raw // 32 if axis == AXES - 1 else raw
                if best is None or compared < best[0]:
                    best, found = (compared, raw, axis, weight), True
                    code_bits = estimated_bits((cost + 4) // 8, value < predicted)
            if found:
                cost = _costs(value, scale)
                plain = int(cost.sum()) * many // count
                plain_bits = estimated_bits((cost + 4) // 8, value < 0)
        if best is None or (size > 64 and best[1] >= plain - plain // 16):
            bits += left * plain_bits
            break
        _, exact, axis, weight = best
        if not steps:
            if exact * 4 < many:
                decay = sum(extent > 1 for extent in extents)
            near = sum(1 << d for d, cost in costs.items() if cost <= 2 * costs[axis])
        steps.append(axis | weight << 2)
        even = -(-grid[axis] // 2)
        share = left * even / grid[axis]
        bits += (left - share) * code_bits
        left = share
        grid[axis] = even
        stride[axis] *= 2
    return Candidate(Plan(INTERPOLATION, bytes([0, decay, *steps])), bits, near)


def places(
    grid: list[int], stride: list[int], axis: int, many: int, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """Sampled odd positions along an axis, their numbers, and how many even ones there are."""
    n = grid[axis]
    at = torch.zeros(many, dtype=torch.int64, device=device)
    j = at
    for d in range(AXES):
        index = indices(d, n // 2 if d == axis else grid[d], many, device)
        if d == axis:
            j, index = index, 2 * index + 1
        at = at + index * stride[d]
    return at, j, -(-n // 2)


def sampled_codes(scaled: Tensor) -> Tensor:
    """Codes, not further from zero than what any predictor can be judged by."""
    return torch.where(scaled.abs() < _COST_CEILING, scaled, 0.0).round().to(torch.int64)


def _sampled(
    x: Tensor, grid: list[int], stride: list[int], axis: int, many: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Values between known ones along an axis, and the sums of the two pairs around them."""
    by = stride[axis]
    at, j, even = places(grid, stride, axis, many, x.device)
    after = (j + 1 < even).to(torch.int64)
    a = x[at - by - 2 * by * (j > 0).to(torch.int64)]
    b = x[at - by]
    c = x[at - by + 2 * by * after]
    d4 = x[at - by + 2 * by * after + 2 * by * (j + 2 < even).to(torch.int64)]
    return x[at], b + c, a + d4


def _lorenzo(x: Tensor, extents: Extents, step: Tensor) -> tuple[Plan, float]:
    inverse = 1 / step
    stride = strides(extents)
    index = [indices(d, extents[d], LORENZO_SAMPLES, x.device) for d in range(AXES)]
    at = sum((i * s for i, s in zip(index, stride, strict=True)), torch.zeros_like(index[0]))
    codes = torch.zeros((3, 3, 3, LORENZO_SAMPLES), dtype=torch.int64, device=x.device)
    for i in range(27):
        back = (i // 9, i // 3 % 3, i % 3)
        inside = torch.ones_like(at, dtype=torch.bool)
        source = at
        for d in range(3):
            inside &= index[d + 1] >= back[d]
            source = source - back[d] * stride[d + 1]
        scaled = x[source.clamp(min=0)] * inverse
        codes[back] = torch.where(inside, sampled_codes(scaled), 0)
    best: tuple[float, int, int] | None = None
    for order, taps in ((1, (1, -1, 0)), (2, (1, -2, 1))):
        t = torch.tensor(taps, dtype=torch.int64, device=x.device)
        along = (codes * t.view(1, 1, 3, 1)).sum(2)
        plane = (along * t.view(1, 3, 1)).sum(1)
        for axes, residual in enumerate(
            (along[0, 0], plane[0], (plane * t[:, None]).sum(0)), 1
        ):
            bits = estimated_bits(residual.abs(), residual < 0)
            if best is None or bits < best[0]:
                best = (bits, order, axes)
    assert best is not None
    return Plan(LORENZO, bytes(best[1:])), best[0]
