"""How `predict` goes about a field with holes: chosen from samples of the values there are.

Holes are NaN here.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from encke.ops.reference import predict_plan
from encke.ops.reference.predict_estimate import estimated_bits
from encke.ops.reference.predict_plan import AXES, INTERPOLATION, LORENZO, Extents, Plan


def choose(x: Tensor, extents: Extents, step: Tensor) -> Plan:
    """The plan for the values `x`, flat and in the precision of their arithmetic."""
    halved = predict_plan.interpolation(x, extents, step, sampled_beside_holes)
    if halved.bits > 0.25:
        halved = halved._replace(plan=replace(halved.plan, share=3))
    first = halved.near << 4 | (2 if halved.bits > 1.0 else 0)
    plan = replace(halved.plan, data=bytes([first]) + halved.plan.data[1:])
    assert plan.mode == INTERPOLATION
    if halved.bits < 1.0:
        return plan
    lorenzo, bits = _lorenzo(x, extents, step)
    return lorenzo if bits < predict_plan.CLEARLY * halved.bits else plan


def sampled_beside_holes(
    x: Tensor, grid: list[int], stride: list[int], axis: int, many: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Up to `many` values between ones of which at least one is there, and the sums of the
    two pairs around each, those that are not there replaced about as holes are filled."""
    points = min(predict_plan.POINTS, 4 * many)
    at, j, even = predict_plan.places(grid, stride, axis, points, x.device)
    by = stride[axis]
    after = (j + 1 < even).to(torch.int64)
    value, b = x[at], x[at - by]
    c = x[at - by + 2 * by * after]
    a = x[at - by - 2 * by * (j > 0).to(torch.int64)]
    d = x[at - by + 2 * by * after + 2 * by * (j + 2 < even).to(torch.int64)]
    there = ~(value.isnan() | (b.isnan() & c.isnan()))
    value, a, b, c, d = (t[there][:many] for t in (value, a, b, c, d))
    half = torch.tensor(0.5, dtype=x.dtype, device=x.device)
    b = torch.where(b.isnan(), torch.where(d.isnan(), c, c + (c - d) * half), b)
    c = torch.where(c.isnan(), torch.where(a.isnan(), b, b + (b - a) * half), c)
    a, d = torch.where(a.isnan(), b, a), torch.where(d.isnan(), c, d)
    return value, b + c, a + d


def _lorenzo(x: Tensor, extents: Extents, step: Tensor) -> tuple[Plan, float]:
    inverse = 1 / step
    stride = predict_plan.strides(extents)
    points = predict_plan.POINTS
    index = [predict_plan.indices(d, extents[d], points, x.device) for d in range(AXES)]
    at = sum((i * s for i, s in zip(index, stride, strict=True)), torch.zeros_like(index[0]))
    chosen = torch.nonzero(~x[at].isnan()).flatten()[: predict_plan.LORENZO_SAMPLES]
    at, index = at[chosen], [i[chosen] for i in index]
    code, there = [], []
    for i in range(8):
        back = (i >> 2, i >> 1 & 1, i & 1)
        inside, source = torch.ones_like(at, dtype=torch.bool), at
        for d in range(3):
            inside &= index[d + 1] >= back[d]
            source = source - back[d] * stride[d + 1]
        value = x[source.clamp(min=0)]
        there.append(inside & ~value.isnan())
        code.append(torch.where(there[-1], predict_plan.sampled_codes(value * inverse), 0))
    found = []
    for axes in (1, 2, 3):
        none = torch.zeros_like(there[0])
        w, n, p = there[1], there[2] if axes > 1 else none, there[4] if axes > 2 else none
        nw, pw, pn = n & there[3], p & there[5], n & p & there[6]
        foretold = code[1]
        for case, said in (
            (n, code[2]),
            (p, code[4]),
            (w & nw, code[1] + code[2] - code[3]),
            (pn, code[2] + code[4] - code[6]),
            (w & pw, code[1] + code[4] - code[5]),
            (
                w & nw & pw & pn & there[7],
                code[1] + code[2] + code[4] - code[3] - code[5] - code[6] + code[7],
            ),
        ):
            foretold = torch.where(case, said, foretold)
        residual = (code[0] - foretold)[w | n | p]
        found.append(estimated_bits(residual.abs(), residual < 0))
    least = min(found)
    return Plan(LORENZO, bytes([1, found.index(least) + 1])), least
