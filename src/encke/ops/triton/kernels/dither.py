"""The dither of docs/format.md, section 4, for tiles of consecutive positions."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def page_key(seed, page):
    """SplitMix64 of seed and page, its lower and its upper half."""
    z = seed.to(tl.uint64) + (page.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    key = z ^ (z >> 31)
    return key.to(tl.uint32), (key >> 32).to(tl.uint32)


@triton.jit
def mixed(counter, k0, k1):
    """The hash of a counter under a page's key."""
    h = counter ^ k0
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = h ^ k1
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def integers(seed, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """m of the positions first … first + ROWS · COLUMNS − 1, which share a page.

    Sixteen positions share the hash that their two rotations come from: it is computed once
    for them. COLUMNS is a multiple of 16.
    """
    first = first.to(tl.int64)
    k0, k1 = page_key(seed.to(tl.int64), first >> 16)
    start = (first & 65535).to(tl.uint32)
    row = tl.arange(0, ROWS).to(tl.uint32)[:, None] * COLUMNS
    j = start + row + tl.arange(0, COLUMNS).to(tl.uint32)[None, :]
    odd = (j >> 3) & 1
    shared = mixed(((j >> 4) << 3) + (j & 7), k0, k1)
    fraction = (shared >> (odd * 13)) & 8191
    PAIRS: tl.constexpr = COLUMNS // 16
    pair = start + row + tl.arange(0, PAIRS).to(tl.uint32)[None, :] * 16
    turning = mixed((pair >> 4) << 3, k0, k1)
    turning = tl.broadcast_to(turning[:, :, None], (ROWS, PAIRS, 16))
    rotation = (tl.reshape(turning, (ROWS, COLUMNS)) >> (29 - odd * 3)) & 7
    return (((j + rotation) & 7) * 8192 + fraction).to(tl.int32)


@triton.jit
def offsets(seed, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DTYPE: tl.constexpr):
    """u = (m + 1/2) / 65536 − 1/2 of the same positions. Exact."""
    twice = integers(seed, first, ROWS, COLUMNS) * 2 - 65535
    if DTYPE == 2:
        return twice.to(tl.float64) * 7.62939453125e-06
    else:
        return twice.to(tl.float32) * 7.62939453125e-06
