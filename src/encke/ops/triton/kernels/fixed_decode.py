"""`fixed`, payload to values (docs/format.md, section 5).

A sparse block's length is in its bitmap, so blocks can only be found one after the other.
`walk` does that, each lane in a chunk of its own; `decode` then has all blocks of a chunk at
once. Both note a chunk that breaks a rule.
"""

from __future__ import annotations

import triton
import triton.language as tl

from encke.ops.triton.kernels import bits as strings
from encke.ops.triton.kernels import pattern
from encke.ops.triton.kernels.fixed_blocks import (
    BLOCK,
    BLOCKS,
    CHUNK,
    PLAIN,
    POINTWISE,
    RAW,
    WIDEST,
    offset,
)

#: Above every pattern of a finite value, with room for a code below 2^63.
_BASE_CEILING = tl.constexpr(2**63 - 2**32)


@triton.jit(do_not_specialize=["count", "chunks", "end"])
def walk(
    payload,
    ends,
    starts,
    wrong,
    count: tl.int64,
    chunks: tl.int64,
    end: tl.int64,
    KIND: tl.constexpr,
    SIZE: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Where every block begins, and whether the blocks of a chunk fill it.

    ends    of the chunks, int64, from the start of the payload; the one before the first too
    starts  int32, a block's begin in its chunk
    wrong   int32, one number a chunk: 0 if all is well
    """
    chunk = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    exists = chunk < chunks
    begin = tl.load(ends + chunk, mask=exists, other=0)
    finish = tl.load(ends + chunk + 1, mask=exists, other=0)
    rest = tl.where(exists, tl.minimum(count - chunk * CHUNK, CHUNK), 0).to(tl.int32)
    blocks = (rest + (BLOCK - 1)) // BLOCK
    readable = tl.minimum(end - begin, blocks)
    byte = tl.arange(0, 4)[None, :]
    at = begin + blocks
    for b in range(tl.max(blocks, 0)):
        header = tl.load(payload + begin + b, mask=b < readable, other=0).to(tl.int32)
        raw = header == RAW
        sparse = ((header & 64) != 0) & (header != RAW)
        tl.store(starts + chunk * BLOCKS + b, (at - begin).to(tl.int32), mask=exists)
        if KIND == POINTWISE:
            at += ((header != 0) & (header != RAW)).to(tl.int32) * 8
        place = at[:, None] + byte
        bitmap = tl.load(payload + place, mask=sparse[:, None] & (place < end), other=0)
        # How many of its bits are set, a byte at a time.
        ones = bitmap.to(tl.int32)
        ones -= (ones >> 1) & 0x55
        ones = (ones & 0x33) + ((ones >> 2) & 0x33)
        ones = tl.sum((ones + (ones >> 4)) & 0x0F, 1)
        bits = (header & 31) * tl.where(sparse, ones, BLOCK)
        coded = ((bits + 7) >> 3) + sparse.to(tl.int32) * 4
        at += tl.where(raw, tl.minimum(rest - b * BLOCK, BLOCK) * SIZE, coded)
    broken = (finish - begin < blocks) | (finish > end) | (at != finish)
    tl.store(wrong + chunk, broken.to(tl.int32), mask=exists)


@triton.jit(do_not_specialize=["count", "end", "step0", "step1", "seed"])
def decode(
    payload,
    ends,
    starts,
    wrong,
    values,
    count: tl.int64,
    end: tl.int64,
    step0: tl.int64,
    step1: tl.int64,
    seed: tl.int64,
    KIND: tl.constexpr,
    DTYPE: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """ROWS blocks of a chunk. Whatever the payload, nothing outside of it is read."""
    program = tl.program_id(0).to(tl.int64)
    index = program // (BLOCKS // ROWS)
    first = program * (ROWS * BLOCK)
    rest = tl.minimum(count - first, ROWS * BLOCK).to(tl.int32)
    block = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    inside = block[:, None] * BLOCK + column
    exists = inside < rest
    here = block * BLOCK < rest

    # From here on everything is counted from the chunk's begin, in 32 bits.
    begin = tl.load(ends + index)
    source = payload + begin
    stop = tl.minimum(end - begin, 1 << 30).to(tl.int32)
    number = (program % (BLOCKS // ROWS)).to(tl.int32) * ROWS + block
    header = tl.load(source + number, mask=here & (number < stop), other=0).to(tl.int32)
    at = tl.load(starts + index * BLOCKS + number, mask=here, other=0)
    raw = header == RAW
    coded = (header != 0) & (header != RAW)
    sparse = coded & ((header & 64) != 0)
    width = tl.where(coded, header & 31, 0)
    signed = coded & ((header & 128) == 0)
    bad = (width > WIDEST) | (signed & ((width == 0) | (KIND == POINTWISE)))
    if tl.max(bad.to(tl.int32), 0) > 0:
        tl.store(wrong + index, 1)
    if KIND == POINTWISE:
        base = strings.get_integer(source, at, stop, coded, 8, tl.uint64).to(tl.int64)
        at += coded.to(tl.int32) * 8
    bitmap = strings.get_integer(source, at, stop, sparse, 4, tl.uint32)
    at += sparse.to(tl.int32) * 4
    filled = ((bitmap[:, None] >> column.to(tl.uint32)) & 1).to(tl.int32)
    present = tl.where(sparse[:, None], filled, coded.to(tl.int32)[:, None]) != 0
    codes = _codes(source, at, stop, filled, width, sparse, coded, column, ROWS)
    half = ((tl.full((ROWS,), 1, tl.int32) << width) >> 1)[:, None]
    codes = tl.where(signed[:, None] & (codes >= half), codes - 2 * half, codes)

    if KIND == POINTWISE:
        found = _pointwise(codes, base, seed, DTYPE)
    else:
        tier = (header & 32) != 0
        step = tl.where(tier, pattern.scalar(step1, DTYPE), pattern.scalar(step0, DTYPE))
        scaled = codes.to(tl.float64 if DTYPE == 2 else tl.float32)
        if KIND != PLAIN:
            scaled = scaled - offset(seed, first, KIND, DTYPE, ROWS)
        y = scaled * step[:, None]
        found = pattern.rounded(y, DTYPE)
        if (DTYPE > 2) and (KIND != PLAIN):
            # What has a code is not zero: it becomes the smallest number of its sign.
            found = tl.where((found & 0x7FFF) == 0, found | 1, found)
    found = tl.where(present, found, 0)
    if tl.max(raw.to(tl.int32), 0) > 0:
        each = at[:, None] + column * SIZE
        kind: tl.constexpr = tl.uint64 if DTYPE == 2 else tl.uint32
        verbatim = strings.get_integer(source, each, stop, raw[:, None] & exists, SIZE, kind)
        found = tl.where(raw[:, None], verbatim.to(found.dtype), found)
    tl.store((values + first) + inside, found.to(values.dtype.element_ty), mask=exists)


@triton.jit
def _codes(source, at, stop, filled, width, sparse, coded, column, ROWS: tl.constexpr):
    """The codes as they stand, without their sign."""
    codes = tl.zeros((ROWS, BLOCK), tl.int32)
    dense = coded & (sparse == 0)
    for plane in range(tl.max(tl.where(dense, width, 0), 0)):
        place = at[:, None] + 4 * plane + (column >> 3)
        inside = (dense & (plane < width))[:, None] & (place < stop)
        byte = tl.load(source + place, mask=inside, other=0).to(tl.int32)
        codes = codes | (((byte >> (column & 7)) & 1) << plane)
    widest = tl.max(tl.where(sparse, width, 0), 0)
    if widest > 0:
        rank = tl.cumsum(filled, 1) - filled
        bit = at[:, None] * 8 + rank * width[:, None]
        wide = tl.broadcast_to(width[:, None], (ROWS, BLOCK))
        chosen = sparse[:, None] & (filled != 0)
        packed = strings.get_code(source, bit, wide, widest, stop, chosen, tl.uint32)
        codes = tl.where(sparse[:, None], packed.to(tl.int32), codes)
    return codes


@triton.jit
def _pointwise(codes, base, divisor, DTYPE: tl.constexpr):
    """The pattern of level base + code / 2, times the divisor, with the sign put back."""
    largest = (tl.zeros((1, 1), tl.int64) + pattern.infinity(DTYPE)) - 1
    # As unsigned numbers: a divisor from 2^63 on is above every pattern, too.
    limit = tl.where((divisor < 0) | (divisor > largest), largest, divisor)
    beyond = (base < 0) | (base > _BASE_CEILING)
    levels = tl.where(beyond, _BASE_CEILING, base)[:, None] + (codes >> 1).to(tl.int64)
    saturated = levels > largest // limit
    size = tl.where(saturated, largest, tl.where(saturated, 0, levels) * limit)
    if DTYPE == 2:
        sign = (codes & 1).to(tl.int64) << 63
        return size | sign
    else:
        top: tl.constexpr = 31 if DTYPE == 1 else 15
        return size.to(tl.int32) | ((codes & 1) << top)
