"""Lorenzo prediction (docs/format.md, section 8): differences of codes along each axis."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.ops.reference import predict_holes
from encke.ops.reference.predict_coding import Coding, wrapped
from encke.ops.reference.predict_plan import AXES, Extents, Plan


def pieces(plan: Plan, extents: Extents) -> list[int]:
    """One piece: the codes, in memory order."""
    return [math.prod(extents)]


def encode(c: Coding, x: Tensor) -> tuple[Tensor, Tensor]:
    u = c.dither(0, x.numel())
    codes, y = c.quantise(x, torch.zeros_like(x), u, c.lattice())
    if c.valid is not None:
        return _differences_with_holes(c, codes, c.valid), y
    grid = codes.view(c.extents)
    for axis in range(AXES - c.plan.axes, AXES):
        for _ in range(c.plan.order):
            lead = torch.zeros_like(grid.narrow(axis, 0, 1))
            grid = torch.diff(grid, dim=axis, prepend=lead)
    return grid.reshape(-1), y


def order(c: Coding, valid: Tensor) -> list[Tensor]:
    """Which positions of each piece have a value."""
    return [valid]


def _differences_with_holes(c: Coding, codes: Tensor, valid: Tensor) -> Tensor:
    codes = predict_holes.carry_over(torch.cat([codes.new_zeros(1), codes]), _led(valid))
    before, codes = codes[:-1], codes[1:]
    base, link = predict_holes.foretold(
        codes.view(c.extents), valid.view(c.extents), c.plan.axes
    )
    return codes - base.reshape(-1) - torch.where(link.reshape(-1), before, 0)


def _led(valid: Tensor) -> Tensor:
    """With a value in front, which is the 0 that everything starts from."""
    return torch.cat([valid.new_ones(1), valid])


def _sums_with_holes(c: Coding, codes: Tensor, valid: Tensor) -> Tensor:
    """Row by row: each needs the ones before it."""
    width, rows = c.extents[3], codes.numel() // c.extents[3]
    grid, mask = torch.zeros_like(codes).view(c.extents), valid.view(c.extents)
    before = 0
    for r in range(rows):
        (plane, y), own = divmod(r, c.extents[2]), slice(r * width, (r + 1) * width)
        batch, plane = divmod(plane, c.extents[1])
        near = (
            slice(batch, batch + 1),
            slice(max(plane - 1, 0), plane + 1),
            slice(max(y - 1, 0), y + 1),
        )
        base, link = predict_holes.foretold(grid[near], mask[near], c.plan.axes)
        line = (codes[own] + base[-1, -1, -1]).tolist()
        links = link[-1, -1, -1].tolist()
        for i, linked in enumerate(links):
            before = (line[i] + (before if linked else 0) + 2**31) % 2**32 - 2**31
            line[i] = before
        grid.view(-1)[own] = torch.tensor(line, dtype=codes.dtype, device=codes.device)
    return grid.reshape(-1)


def decode(c: Coding, codes: Tensor) -> Tensor:
    grid = codes.view(c.extents)
    if c.valid is not None:
        grid = _sums_with_holes(c, codes, c.valid)
    else:
        for axis in range(AXES - c.plan.axes, AXES):
            for _ in range(c.plan.order):
                grid = wrapped(grid.cumsum(axis))
    flat = grid.reshape(-1)
    zero = torch.zeros(flat.numel(), dtype=c.real, device=c.device)
    return c.rebuild(flat, zero, c.dither(0, flat.numel()), c.lattice())
