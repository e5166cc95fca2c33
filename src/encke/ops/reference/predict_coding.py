"""What the predictors of docs/format.md, section 8, share: lattice, dither and runs.

Every operation on values is one IEEE rounding in the arithmetic's precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from encke.ops.reference import dither
from encke.ops.reference.predict_plan import INTERPOLATION, LORENZO, Extents, Plan

_RUN_CODES = 4096
_SEED_STEP = 0xD1342543DE82EF95
_MASK64 = 0xFFFF_FFFF_FFFF_FFFF


class Coding(NamedTuple):
    """What a stream fixes for all its codes; `runs` has each one's first code and size.
    `valid` is flat, or None where every position has a value."""

    plan: Plan
    extents: Extents
    runs: list[tuple[int, int]]
    step: float
    dithered: bool
    seed: int
    real: torch.dtype
    device: torch.device
    valid: Tensor | None = None

    def lattice(self, halving: int = 0) -> Tensor:
        """The step of a halving, rounded to the arithmetic's precision."""
        share = self.plan.fineness(halving) if self.plan.mode == INTERPOLATION else 64
        return torch.tensor(self.step * share / 64, dtype=self.real, device=self.device)

    @property
    def largest_code(self) -> float:
        """Differences of codes up to here stay clear of the ends of the 32-bit range."""
        if self.real == torch.float32:
            return 2.0**21
        if self.plan.mode != LORENZO:
            return 2.0**29
        return 2.0**27 if self.plan.order == 1 else 2.0**24

    def dither(self, first: int, count: int) -> Tensor:
        """The dither of `count` codes from `first` on, which lie in one run."""
        if not self.dithered:
            return torch.zeros(count, dtype=self.real, device=self.device)
        run = next(r for r, (start, size) in enumerate(self.runs) if first < start + size)
        start = first - self.runs[run][0]
        seed = run_seed(self.seed, run)
        return dither.offsets(seed, count, self.real, self.device, start=start)

    def quantise(
        self, x: Tensor, predicted: Tensor, u: Tensor, step: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Codes of values, and what they decode to; out of reach is code 0."""
        scaled = (x - predicted) * (1 / step)
        if self.dithered:
            scaled = scaled + u
        rounded = torch.where(scaled.abs() <= self.largest_code, scaled, 0.0).round()
        return rounded.to(torch.int64), self.rebuild(rounded, predicted, u, step)

    def rebuild(self, codes: Tensor, predicted: Tensor, u: Tensor, step: Tensor) -> Tensor:
        """The values of codes."""
        rounded = codes.to(self.real)
        return predicted + (rounded - u if self.dithered else rounded) * step


def run_seed(seed: int, run: int) -> int:
    """The seed of a run's dither."""
    return (seed + run * _SEED_STEP) & _MASK64


def runs_of(pieces: list[int], share: int) -> list[tuple[int, int]]:
    """First code and number of codes of each run; a run has 2^-share of all or more.

    >>> runs_of([1, 3, 4, 8000, 8000], 5)
    [(0, 8008), (8008, 8000)]
    """
    return runs_with_holes(pieces, pieces, share)[0]


_Runs = list[tuple[int, int]]


def runs_with_holes(pieces: list[int], coded: list[int], share: int) -> tuple[_Runs, _Runs]:
    """The same where only some positions of a piece are coded: the runs' places among all
    positions, and among those that are coded.

    >>> runs_with_holes([8, 8000, 8000], [4, 5000, 7000], 5)
    ([(0, 8008), (8008, 8000)], [(0, 5004), (5004, 7000)])
    """
    enough = max(_RUN_CODES, sum(coded) >> share)
    runs: _Runs = []
    codes: _Runs = []
    at = code = 0
    is_open = False
    for piece, own in zip(pieces, coded, strict=True):
        first, count = runs.pop() if is_open else (at, 0)
        first_code, codes_count = codes.pop() if is_open else (code, 0)
        runs.append((first, count + piece))
        codes.append((first_code, codes_count + own))
        at += piece
        code += own
        is_open = codes_count + own < enough
    return runs, codes


def wrapped(codes: Tensor) -> Tensor:
    """Integers modulo 2^32, as a signed 32-bit integer holds them."""
    return ((codes + 2**31) & 0xFFFF_FFFF) - 2**31
