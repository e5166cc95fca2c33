"""Lorenzo prediction (docs/format.md, section 8): differences of codes along each axis."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.ops.reference.predict_coding import Coding, wrapped
from encke.ops.reference.predict_plan import AXES, Extents, Plan


def pieces(plan: Plan, extents: Extents) -> list[int]:
    """One piece: the codes, in memory order."""
    return [math.prod(extents)]


def encode(c: Coding, x: Tensor) -> tuple[Tensor, Tensor]:
    u = c.dither(0, x.numel())
    codes, y = c.quantise(x, torch.zeros_like(x), u, c.lattice())
    grid = codes.view(c.extents)
    for axis in range(AXES - c.plan.axes, AXES):
        for _ in range(c.plan.order):
            lead = torch.zeros_like(grid.narrow(axis, 0, 1))
            grid = torch.diff(grid, dim=axis, prepend=lead)
    return grid.reshape(-1), y


def decode(c: Coding, codes: Tensor) -> Tensor:
    grid = codes.view(c.extents)
    for axis in range(AXES - c.plan.axes, AXES):
        for _ in range(c.plan.order):
            grid = wrapped(grid.cumsum(axis))
    flat = grid.reshape(-1)
    zero = torch.zeros(flat.numel(), dtype=c.real, device=c.device)
    return c.rebuild(flat, zero, c.dither(0, flat.numel()), c.lattice())
