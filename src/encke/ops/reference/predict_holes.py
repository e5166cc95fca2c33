"""Fields with holes in `predict` (docs/format.md, section 8): which positions have codes, and
what holes are filled with where values are predicted from them."""

from __future__ import annotations

import torch
from torch import Tensor

_LAYERS = 2


def carry_over(y: Tensor, valid: Tensor) -> Tensor:
    """Holes take the value before them, those in front the first one there is."""
    places = torch.nonzero(valid).flatten()
    if places.numel() == 0:
        return torch.zeros_like(y)
    before = torch.cumsum(valid.to(torch.int64), 0) - 1
    return y[places[before.clamp(min=0)]]


def fill(y: Tensor, valid: Tensor, *, axes: int, steep: bool) -> Tensor:
    """`y`, of four dimensions, with the holes beside values filled, in two layers: with the
    mean over axes and directions of a value carried on with three or two quarters of the
    slope to the one behind it."""
    slope = torch.tensor(0.75 if steep else 0.5, dtype=y.dtype, device=y.device)
    known = valid
    for _ in range(_LAYERS):
        total = torch.zeros_like(y)
        many = torch.zeros_like(y)
        for axis in range(y.ndim):
            if not axes >> axis & 1:
                continue
            for by in (1, -1):
                near, is_near = _beside(y, axis, by, 0.0), _beside(known, axis, by, False)
                far, is_far = _beside(y, axis, 2 * by, 0.0), _beside(known, axis, 2 * by, False)
                beyond = torch.where(is_far, near + (near - far) * slope, near)
                total = total + torch.where(is_near, beyond, 0.0)
                many = many + is_near.to(y.dtype)
        filled = ~known & (many > 0)
        y = torch.where(filled, total / many, y)
        known = known | filled
    return y


def _beside(x: Tensor, axis: int, by: int, outside: float | bool) -> Tensor:
    """Position i of the result is position i + by of x along an axis."""
    n = x.shape[axis]
    result = torch.full_like(x, outside)
    kept = max(0, n - abs(by))
    if kept:
        source, target = (by, 0) if by > 0 else (0, -by)
        result.narrow(axis, target, kept).copy_(x.narrow(axis, source, kept))
    return result


def foretold(codes: Tensor, valid: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """For Lorenzo's codes, of four dimensions: what those of other rows say, and whether the
    code before is to be added. Codes of rows that are not known yet may be anything."""
    w, n, p = (_back(valid, axis) for axis in (3, 2, 1))
    if axes < 2:
        n = torch.zeros_like(n)
    if axes < 3:
        p = torch.zeros_like(p)
    nw, pw = n & _back(_back(valid, 2), 3), p & _back(_back(valid, 1), 3)
    pn = n & p & _back(_back(valid, 1), 2)
    pnw = _back(_back(_back(valid, 1), 2), 3)
    cn, cp = _back(codes, 2), _back(codes, 1)
    cpn = _back(cp, 2)
    cnw, cpw, cpnw = _back(cn, 3), _back(cp, 3), _back(cpn, 3)
    every = w & nw & pw & pn & pnw
    back = w & pw & ~every
    square = pn & ~(every | back)
    plane = w & nw & ~(every | back | square)
    only_p = p & ~(every | back | square | plane)
    only_n = n & ~(every | back | square | plane | only_p)
    base = torch.zeros_like(codes)
    for case, value in (
        (every, cn + cp - cpn - cnw - cpw + cpnw),
        (back, cp - cpw),
        (square, cn + cp - cpn),
        (plane, cn - cnw),
        (only_p, cp),
        (only_n, cn),
    ):
        base = torch.where(case & valid, value, base)
    return base, ~(square | only_p | only_n) | ~valid


def _back(x: Tensor, axis: int) -> Tensor:
    return _beside(x, axis, -1, 0)
