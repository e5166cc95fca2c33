"""Strings of bits: codes into words into bytes, and codes out of bytes.

Outputs begin at any byte. Words are turned into bytes and stored so that neighbouring lanes
write neighbouring bytes; a few words at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

WORDS = tl.constexpr(8)


@triton.jit
def shifted(code, by):
    """The 32 bits of a string from which `code` begins `by` bits on, negative if before."""
    if code.dtype.primitive_bitwidth == 64:
        left = tl.where((by >= 0) & (by < 32), code << (by & 31).to(tl.uint64), 0)
        right = tl.where((by < 0) & (by > -64), code >> (-by & 63).to(tl.uint64), 0)
        return ((left | right) & 0xFFFFFFFF).to(tl.uint32)
    else:
        left = tl.where((by >= 0) & (by < 32), code << (by & 31).to(tl.uint32), 0)
        right = tl.where((by < 0) & (by > -32), code >> (-by & 31).to(tl.uint32), 0)
        return left | right


@triton.jit
def put_words(target, words, at, limit, ROWS: tl.constexpr, COUNT: tl.constexpr):
    """Store COUNT words of each row as bytes from target + at on, as many as `limit` says."""
    place = tl.arange(0, 4).to(tl.uint32)[None, None, :] * 8
    parts = (words[:, :, None] >> place) & 255
    parts = tl.reshape(parts, (ROWS, 4 * COUNT)).to(tl.uint8)
    column = tl.arange(0, 4 * COUNT)[None, :]
    tl.store(target + at[:, None] + column, parts, mask=column < limit[:, None])


@triton.jit
def put_integer(target, value, at, chosen, BYTES: tl.constexpr):
    """Store an integer of each row as BYTES bytes, the lowest first."""
    place = tl.arange(0, BYTES)[None, :]
    parts = (value[:, None] >> (place * 8).to(value.dtype)) & 255
    tl.store(target + at[:, None] + place, parts.to(tl.uint8), mask=chosen[:, None])


@triton.jit
def put_scalar(target, value, BYTES: tl.constexpr, chosen):
    """Store one integer as BYTES bytes, the lowest first."""
    place = tl.arange(0, BYTES)
    value = value.to(tl.int64)
    tl.store(target + place, ((value >> (place * 8)) & 255).to(tl.uint8), mask=chosen)


@triton.jit
def get_integer(source, at, end, chosen, BYTES: tl.constexpr, KIND: tl.constexpr):
    """An integer of BYTES bytes at every place; 0 where not chosen or beyond the end."""
    value = tl.zeros(at.shape, KIND)
    for i in tl.static_range(BYTES):
        inside = chosen & (at + i < end)
        byte = tl.load(source + at + i, mask=inside, other=0)
        value = value | (byte.to(KIND) << (8 * i))
    return value


@triton.jit
def get_code(source, bit, width, most, end, chosen, KIND: tl.constexpr):
    """`width` bits from bit number `bit` of a string; `most` is the largest width.

    In uint32 a width of up to 25 needs 4 bytes; wider codes take what sticks out of them
    from a fifth. KIND is tl.uint32 for widths of up to 32, tl.uint64 for up to 64.
    """
    at = bit >> 3
    skip = (bit & 7).to(tl.int32)
    SIZE: tl.constexpr = 8 if KIND == tl.uint64 else 4
    low = tl.zeros(at.shape, KIND)
    high = tl.zeros(at.shape, KIND)
    for i in range((most + 14) >> 3):
        inside = chosen & (i * 8 < width + skip) & (at + i < end)
        byte = tl.load(source + at + i, mask=inside, other=0).to(KIND)
        if i < SIZE:
            low = low | (byte << (i * 8))
        else:
            high = byte
    # What a fifth (ninth) byte holds goes above what is left of the others.
    low = low >> skip.to(KIND)
    above = tl.where(skip > 0, high << ((8 * SIZE - skip) & (8 * SIZE - 1)).to(KIND), 0)
    code = low | above
    whole = width >= 8 * SIZE
    ones = (tl.full(width.shape, 1, KIND) << tl.where(whole, 0, width).to(KIND)) - 1
    return tl.where(whole, code, code & ones)


@triton.jit
def length_of(value, COLUMNS: tl.constexpr):
    """Bits that each non-negative number of a row takes: 0 for 0."""
    place = tl.arange(0, COLUMNS)[None, :].to(value.dtype)
    return tl.sum(((value[:, None] >> place) > 0).to(tl.int32), 1)
