"""What the controller and `auto` ask about values, while they are in registers anyway."""

from __future__ import annotations

import triton
import triton.language as tl

from encke.ops.triton.kernels import pattern


@triton.jit
def measure(bits, exists, target, DTYPE: tl.constexpr):
    """Write five binary64 numbers: smallest, largest, sum of squares, number of non-zeros, all
    of the finite values, and how many are not finite."""
    size = pattern.magnitude(bits, DTYPE)
    finite = exists & (size < pattern.infinity(DTYPE))
    x = pattern.real(tl.where(finite, bits, 0), DTYPE).to(tl.float64)
    low = tl.min(tl.min(tl.where(finite, x, float("inf")), 1), 0)
    high = tl.max(tl.max(tl.where(finite, x, float("-inf")), 1), 0)
    square = tl.sum(tl.sum(x * x, 1), 0)
    nonzero = tl.sum(tl.sum((finite & (size != 0)).to(tl.int32), 1), 0)
    strange = tl.sum(tl.sum((exists & (finite == 0)).to(tl.int32), 1), 0)
    tl.store(target, low)
    tl.store(target + 1, high)
    tl.store(target + 2, square)
    tl.store(target + 3, nonzero.to(tl.float64))
    tl.store(target + 4, strange.to(tl.float64))


@triton.jit(do_not_specialize=["count"])
def statistics(values, target, count: tl.int64, ROWS: tl.constexpr, DTYPE: tl.constexpr):
    """The same without encoding: one program for ROWS · 32 values."""
    index = tl.program_id(0).to(tl.int64)
    inside = tl.arange(0, ROWS)[:, None] * 32 + tl.arange(0, 32)[None, :]
    at = index * (ROWS * 32) + inside
    bits = tl.load(values + at, mask=at < count, other=0)
    measure(pattern.widened(bits, DTYPE), at < count, target + 5 * index, DTYPE)
