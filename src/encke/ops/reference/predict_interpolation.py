"""Interpolation by halving (docs/format.md, section 8).

The grid is halved along one axis after the other; each step back predicts the values
between from what is rebuilt around them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from encke.ops.reference import predict_holes
from encke.ops.reference.predict_coding import Coding, wrapped
from encke.ops.reference.predict_plan import Extents, Plan


def pieces(plan: Plan, extents: Extents) -> list[int]:
    """How many codes the coarsest grid and each halving have."""
    sizes = [math.prod(grid) for grid in _grids(plan, extents)]
    return [sizes[-1]] + [sizes[i] - sizes[i + 1] for i in range(len(sizes) - 2, -1, -1)]


def _grids(plan: Plan, extents: Extents) -> list[list[int]]:
    grids = [list(extents)]
    for axis, _ in plan.steps:
        finer = list(grids[-1])
        finer[axis] = -(-finer[axis] // 2)
        grids.append(finer)
    return grids


def _view(x: Tensor, grid: list[int], axis: int) -> Tensor:
    """A grid as (outer, n, inner)."""
    return x.view(math.prod(grid[:axis]), grid[axis], math.prod(grid[axis + 1 :]))


def _between(even: Tensor, odd: int, weight: int) -> Tensor:
    """The odd rows of (outer, n, inner) as the even ones foretell them."""
    last = even.shape[1] - 1
    j = torch.arange(odd, device=even.device)
    a, b = even[:, (j - 1).clamp(min=0)], even[:, j]
    c, d = even[:, (j + 1).clamp(max=last)], even[:, (j + 2).clamp(max=last)]
    return (b + c) * (weight / 16) + (a + d) * ((8 - weight) / 16)


def _halvings(c: Coding) -> Iterator[tuple[int, list[int], int, int]]:
    """Index, grid, axis and weight of each halving, the coarsest first."""
    grids, steps = _grids(c.plan, c.extents), c.plan.steps
    for i in range(len(steps) - 1, -1, -1):
        yield i, grids[i], *steps[i]


def _merge(even: Tensor, odd: Tensor, grid: list[int], axis: int) -> Tensor:
    whole = torch.empty(math.prod(grid), dtype=even.dtype, device=even.device)
    view = _view(whole, grid, axis)
    view[:, 0::2] = even
    view[:, 1::2] = odd
    return whole


def order(c: Coding, valid: Tensor) -> list[Tensor]:
    """Which positions of each piece have a value."""
    grids = _grids(c.plan, c.extents)
    masks = _masks(c, valid)
    odd = [
        _view(masks[i], grids[i], axis)[:, 1::2].reshape(-1)
        for i, (axis, _) in enumerate(c.plan.steps)
    ]
    return [masks[-1], *reversed(odd)]


def _masks(c: Coding, valid: Tensor) -> list[Tensor]:
    masks = [valid]
    for grid, (axis, _) in zip(_grids(c.plan, c.extents), c.plan.steps, strict=False):
        masks.append(_view(masks[-1], grid, axis)[:, 0::2].reshape(-1))
    return masks


def _filled(c: Coding, i: int, y: Tensor) -> Tensor:
    """Grid i, as it was rebuilt, with holes that are fit to be predicted from."""
    if c.valid is None:
        return y
    mask = _masks(c, c.valid)[i]
    if bool(mask.all()):
        return y
    if i == len(c.plan.steps):
        y = predict_holes.carry_over(y, mask)
    grid = _grids(c.plan, c.extents)[i]
    filled = predict_holes.fill(
        y.view(grid), mask.view(grid), axes=c.plan.fill_axes, steep=c.plan.steep
    )
    return filled.reshape(-1)


def encode(c: Coding, x: Tensor) -> tuple[Tensor, Tensor]:
    grids = _grids(c.plan, c.extents)
    truth = [x]
    for grid, (axis, _) in zip(grids, c.plan.steps, strict=False):
        truth.append(_view(truth[-1], grid, axis)[:, 0::2].reshape(-1))
    base = truth[-1]
    zero = torch.zeros_like(base)
    u = c.dither(0, base.numel())
    codes, y = c.quantise(base, zero, u, c.lattice(len(c.plan.steps)))
    if c.plan.difference:
        codes = torch.diff(codes, prepend=codes.new_zeros(1))
    parts, at = [codes], base.numel()
    for i, grid, axis, weight in _halvings(c):
        values = _view(truth[i], grid, axis)[:, 1::2]
        shape = list(values.shape)
        even = _filled(c, i + 1, y).view(shape[0], -1, shape[2])
        predicted = _between(even, shape[1], weight)
        u = c.dither(at, values.numel()).view(shape)
        codes, odd = c.quantise(values, predicted, u, c.lattice(i))
        parts.append(codes.reshape(-1))
        at += values.numel()
        y = _merge(even, odd, grid, axis)
    return torch.cat(parts), y


def decode(c: Coding, codes: Tensor) -> Tensor:
    at = math.prod(_grids(c.plan, c.extents)[-1])
    base = codes[:at]
    if c.plan.difference:
        base = wrapped(base.cumsum(0))
    zero = torch.zeros(at, dtype=c.real, device=c.device)
    y = c.rebuild(base, zero, c.dither(0, at), c.lattice(len(c.plan.steps)))
    for i, grid, axis, weight in _halvings(c):
        outer, n, inner = math.prod(grid[:axis]), grid[axis], math.prod(grid[axis + 1 :])
        shape = (outer, n // 2, inner)
        count = math.prod(shape)
        even = _filled(c, i + 1, y).view(outer, -(-n // 2), inner)
        predicted = _between(even, n // 2, weight)
        u = c.dither(at, count).view(shape)
        odd = c.rebuild(codes[at : at + count].view(shape), predicted, u, c.lattice(i))
        at += count
        y = _merge(even, odd, grid, axis)
    return y
