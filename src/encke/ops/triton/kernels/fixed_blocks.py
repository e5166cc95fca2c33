"""The blocks of one chunk of `fixed`: their codes and header bytes (format.md, section 5)."""

from __future__ import annotations

import triton
import triton.language as tl

from encke.ops.triton.kernels import bits as strings
from encke.ops.triton.kernels import dither, pattern

BLOCK = tl.constexpr(32)
BLOCKS = tl.constexpr(256)
CHUNK = tl.constexpr(8192)
WIDEST = tl.constexpr(30)
RAW = tl.constexpr(0xFF)

PLAIN = tl.constexpr(0)
HALF = tl.constexpr(1)
DITHER = tl.constexpr(2)
POINTWISE = tl.constexpr(3)


@triton.jit
def offset(seed, first, KIND: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr):
    """u of every value of ROWS blocks, or the one that all share."""
    if KIND == DITHER:
        return dither.offsets(seed, first, ROWS, BLOCK, DTYPE)
    else:
        return tl.full((1, 1), 0.5, tl.float64 if DTYPE == 2 else tl.float32)


@triton.jit
def linear(
    bits,
    first,
    inverse0,
    inverse1,
    limit0,
    limit1,
    seed,
    KIND: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Header and codes of each block, and which positions have a code of their own.

    The largest magnitude, as an integer, finds NaN, Inf and what is too large in one go.
    """
    size = pattern.magnitude(bits, DTYPE)
    largest = tl.max(size, 1)
    extent = pattern.real(largest, DTYPE)
    # A comparison with NaN is false, so the patterns say what is not finite.
    raw = (largest >= pattern.infinity(DTYPE)) | (extent > pattern.scalar(limit1, DTYPE))
    second = extent > pattern.scalar(limit0, DTYPE)
    inverse = tl.where(second, pattern.scalar(inverse1, DTYPE), pattern.scalar(inverse0, DTYPE))
    held = tl.where(raw[:, None], 0, bits)
    scaled = pattern.real(held, DTYPE) * inverse[:, None]
    if KIND != PLAIN:
        scaled = scaled + offset(seed, first, KIND, DTYPE, BLOCKS)
    codes = pattern.nearest(scaled, DTYPE)
    filled = codes != 0 if KIND == PLAIN else (size != 0) & (raw[:, None] == 0)
    codes = tl.where(filled, codes, 0)

    signed = tl.min(codes, 1) < 0
    reach = tl.max(tl.where(codes < 0, ~codes, codes), 1)
    width = strings.length_of(reach, BLOCK) + signed.to(tl.int32)
    raw = raw | (width > WIDEST)
    number = tl.sum(filled.to(tl.int32), 1)
    if KIND == PLAIN:
        sparse = 4 + ((width * number + 7) >> 3) < 4 * width
    else:
        sparse = number < BLOCK
    header = (
        width
        | (second.to(tl.int32) << 5)
        | (sparse.to(tl.int32) << 6)
        | ((signed == 0).to(tl.int32) << 7)
    )
    header = tl.where(number > 0, header, 0)
    return tl.where(raw, RAW, header), codes, filled


@triton.jit
def pointwise(bits, divisor, DTYPE: tl.constexpr):
    """Header, codes, positions that have one, and the smallest level of each block."""
    size = pattern.magnitude(bits, DTYPE)
    filled = size != 0
    codable = (size >= pattern.smallest_normal(DTYPE)) & (size < pattern.infinity(DTYPE))
    # Magnitudes and divisors are below 2^63; of 32 bits and less, so is their sum in 32.
    if DTYPE == 2:
        divisor = divisor.to(tl.uint64)
        levels = ((size.to(tl.uint64) + (divisor >> 1)) // divisor).to(tl.int64)
    else:
        divisor = divisor.to(tl.uint32)
        levels = ((size.to(tl.uint32) + (divisor >> 1)) // divisor).to(tl.int64)
    base = tl.min(tl.where(codable, levels, 0x7FFFFFFFFFFFFFFF), 1)
    base = tl.where(tl.max(codable.to(tl.int32), 1) > 0, base, 0)
    spread = tl.where(codable, levels - base[:, None], 0)
    lost = tl.max((filled & (codable == 0)).to(tl.int32), 1) > 0
    raw = lost | (2 * tl.max(spread, 1) + 1 >= 1 << 30)
    negative = pattern.is_negative(bits, DTYPE).to(tl.int64)
    coded = codable & (raw[:, None] == 0)
    codes = tl.where(coded, spread * 2 + negative, 0).to(tl.int32)
    width = strings.length_of(tl.max(codes, 1), BLOCK)
    number = tl.sum(filled.to(tl.int32), 1)
    header = width | ((number < BLOCK).to(tl.int32) << 6) | (1 << 7)
    header = tl.where(number > 0, header, 0)
    return tl.where(raw, RAW, header), codes, filled, base
