"""Regression (docs/format.md, section 8): a polynomial for each block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.ops.reference.predict_coding import Coding, wrapped
from encke.ops.reference.predict_plan import AXES, Extents, Plan


def pieces(plan: Plan, extents: Extents) -> list[int]:
    """The coefficients' codes, then the values'."""
    return [Blocks(plan, extents).coefficients, math.prod(extents)]


class Blocks:
    """Blocks of the last axes; the axes before them are cut into blocks of one."""

    def __init__(self, plan: Plan, extents: Extents) -> None:
        self.plan = plan
        self.extents = extents
        self.sides = [1 if d < AXES - plan.axes else plan.side for d in range(AXES)]
        self.many = [-(-n // side) for n, side in zip(extents, self.sides, strict=True)]
        # For each term the axes whose distances from the centre it multiplies.
        self.terms: list[tuple[int, ...]] = [()]
        first = AXES - plan.axes
        for d in range(first, AXES):
            self.terms.append((d,))
            if plan.order == 2:
                self.terms.append((d, d))
                self.terms += [(d, other) for other in range(first, d)]

    @property
    def coefficients(self) -> int:
        return math.prod(self.many) * len(self.terms)

    def shift(self, term: int) -> int:
        """The power of two that a coefficient's step is below the value's."""
        bits = (self.plan.side - 1).bit_length()
        return (1, 1 + bits, 2 * bits)[len(self.terms[term])]

    def index(self, device: torch.device) -> Tensor:
        """The block of each value."""
        at = torch.zeros((1,) * AXES, dtype=torch.int64, device=device)
        for d in range(AXES):
            i = torch.arange(self.extents[d], device=device) // self.sides[d]
            at = at * self.many[d] + self._along(i, d)
        return at.expand(self.extents).reshape(-1)

    def centred(self, axis: int, real: torch.dtype, device: torch.device) -> Tensor:
        """The distance from its block's centre of each value along an axis."""
        n, side = self.extents[axis], self.sides[axis]
        i = torch.arange(n, device=device)
        size = torch.minimum(torch.full_like(i, side), n - i // side * side)
        return self._along((2 * (i % side) - (size - 1)).to(real) * 0.5, axis)

    def basis(self, term: int, real: torch.dtype, device: torch.device) -> Tensor:
        product = torch.ones((1,) * AXES, dtype=real, device=device)
        for axis in self.terms[term]:
            product = product * self.centred(axis, real, device)
        return product.expand(self.extents).reshape(-1)

    def _along(self, values: Tensor, axis: int) -> Tensor:
        return values.view([-1 if d == axis else 1 for d in range(AXES)])

    def predict(self, c: Coding, codes: Tensor) -> Tensor:
        """Predictions from the coefficients' codes, (blocks, terms)."""
        block = self.index(c.device)
        parts = []
        for term in range(len(self.terms)):
            step = c.lattice() / 2.0 ** self.shift(term)
            coefficient = (codes[:, term].to(c.real) * step)[block]
            parts.append(coefficient * self.basis(term, c.real, c.device))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def fit(self, c: Coding, x: Tensor) -> Tensor:
        """Codes of least-squares coefficients, (blocks, terms)."""
        block = self.index(c.device)
        blocks, double = math.prod(self.many), torch.float64

        def sums(values: Tensor) -> Tensor:
            return values.new_zeros(blocks).index_add_(0, block, values)

        values = torch.where(torch.isfinite(x), x, 0.0).to(double)
        number = sums(torch.ones_like(values))
        fitted = [sums(values) / number]
        for term in range(1, len(self.terms)):
            basis = self.basis(term, double, c.device)
            mean = sums(basis) / number  # 0 but for squares
            free = basis - mean[block]
            norm = sums(free * free)
            slope = torch.where(norm > 0, sums(values * free) / norm.clamp(min=1e-300), 0.0)
            fitted.append(slope)
            fitted[0] = fitted[0] - slope * mean
        codes = []
        for term, coefficient in enumerate(fitted):
            scaled = coefficient / c.lattice().to(double) * 2.0 ** self.shift(term)
            codes.append(torch.where(scaled.abs() <= 2.0**21, scaled, 0.0).round())
        return torch.stack(codes, 1).to(torch.int64)


def order(c: Coding, valid: Tensor) -> list[Tensor]:
    raise AssertionError("no plan for a field with holes has regression")


def encode(c: Coding, x: Tensor) -> tuple[Tensor, Tensor]:
    blocks = Blocks(c.plan, c.extents)
    coefficients = blocks.fit(c, x)
    u = c.dither(blocks.coefficients, x.numel())
    codes, y = c.quantise(x, blocks.predict(c, coefficients), u, c.lattice())
    lead = torch.zeros_like(coefficients[:1])
    differences = torch.diff(coefficients, dim=0, prepend=lead)
    return torch.cat([differences.reshape(-1), codes]), y


def decode(c: Coding, codes: Tensor) -> Tensor:
    blocks = Blocks(c.plan, c.extents)
    split = blocks.coefficients
    coefficients = wrapped(codes[:split].view(-1, len(blocks.terms)).cumsum(0))
    rest = codes[split:]
    u = c.dither(split, rest.numel())
    return c.rebuild(rest, blocks.predict(c, coefficients), u, c.lattice())
