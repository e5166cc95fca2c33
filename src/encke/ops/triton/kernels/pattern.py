"""Floats and their bit patterns. DTYPE is the format's id: 1 float32, 2 float64, 3 float16,
4 bfloat16. Patterns of 16 bits are handled in 32, the upper half zero.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widened(bits, DTYPE: tl.constexpr):
    """A pattern as it was loaded, in the integer it is handled in."""
    if DTYPE <= 2:
        return bits
    else:
        return bits.to(tl.int32) & 0xFFFF


@triton.jit
def magnitude(bits, DTYPE: tl.constexpr):
    """The pattern without its sign."""
    if DTYPE == 1:
        return bits & 0x7FFFFFFF
    elif DTYPE == 2:
        return bits & 0x7FFFFFFFFFFFFFFF
    else:
        return bits & 0x7FFF


@triton.jit
def infinity(DTYPE: tl.constexpr):
    """The pattern of +Inf: magnitudes from here on are not finite."""
    if DTYPE == 1:
        return 0x7F800000
    elif DTYPE == 2:
        return 0x7FF0000000000000
    elif DTYPE == 3:
        return 0x7C00
    else:
        return 0x7F80


@triton.jit
def smallest_normal(DTYPE: tl.constexpr):
    """The pattern of the smallest normal number."""
    if DTYPE == 1:
        return 0x00800000
    elif DTYPE == 2:
        return 0x0010000000000000
    elif DTYPE == 3:
        return 0x0400
    else:
        return 0x0080


@triton.jit
def is_negative(bits, DTYPE: tl.constexpr):
    if DTYPE <= 2:
        return bits < 0
    else:
        return bits >= 0x8000


@triton.jit
def real(bits, DTYPE: tl.constexpr):
    """The value of a pattern in the precision that codes are computed in. Exact."""
    if DTYPE == 1:
        return bits.to(tl.float32, bitcast=True)
    elif DTYPE == 2:
        return bits.to(tl.float64, bitcast=True)
    elif DTYPE == 3:
        return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def rounded(y, DTYPE: tl.constexpr):
    """The pattern of a number rounded to the dtype, to nearest even; y is no NaN."""
    if DTYPE == 1:
        return y.to(tl.int32, bitcast=True)
    elif DTYPE == 2:
        return y.to(tl.int64, bitcast=True)
    elif DTYPE == 3:
        return y.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    else:
        bits = y.to(tl.uint32, bitcast=True)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int32)


@triton.jit
def scalar(double_bits, DTYPE: tl.constexpr):
    """An argument in the precision of the arithmetic. Triton would pass a float as binary32,
    so it comes as the bits of a binary64 number, which the cast keeps exactly."""
    double = double_bits.to(tl.int64).to(tl.float64, bitcast=True)
    if DTYPE == 2:
        return double
    else:
        return double.to(tl.float32)


@triton.jit
def nearest(y, DTYPE: tl.constexpr):
    """y rounded to an int32, ties to even, for |y| below 2^22 (binary64: 2^31).

    Added to 1.5 * 2^23 the sum's last place is 1, so the addition itself rounds, and the
    integer stands in the sum's lowest bits.
    """
    if DTYPE == 2:
        return ((y + 6755399441055744.0).to(tl.int64, bitcast=True) - 0x4338000000000000).to(
            tl.int32
        )
    else:
        return (y + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
