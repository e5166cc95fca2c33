"""`fixed`, values to payload: one program a chunk, one read, one write (section 5)."""

from __future__ import annotations

import triton
import triton.language as tl

from encke.ops.triton.kernels import bits as strings
from encke.ops.triton.kernels import lookback, pattern
from encke.ops.triton.kernels.fixed_blocks import (
    BLOCK,
    BLOCKS,
    CHUNK,
    POINTWISE,
    RAW,
    linear,
    pointwise,
)
from encke.ops.triton.kernels.statistics import measure

PARAMETERS = tl.constexpr(32)
#: Words of a block that are put together before they are stored. With twice as many the
#: addresses alone would take 32 of a thread's 128 registers, and some would spill.
AT_ONCE = tl.constexpr(4)

_SCALARS = [
    *("count", "chunks", "capacity", "step0", "step1"),
    *("inverse0", "inverse1", "limit0", "limit1", "seed"),
]


@triton.jit(do_not_specialize=_SCALARS)
def encode(
    values,
    payload,
    state,
    statistics,
    count: tl.int64,
    chunks: tl.int64,
    capacity: tl.int64,
    step0: tl.int64,
    step1: tl.int64,
    inverse0: tl.int64,
    inverse1: tl.int64,
    limit0: tl.int64,
    limit1: tl.int64,
    seed: tl.int64,
    KIND: tl.constexpr,
    DTYPE: tl.constexpr,
    SIZE: tl.constexpr,
    STATISTICS: tl.constexpr,
):
    """One chunk. Floats among the arguments are bits of binary64; for kind pointwise `seed`
    is the divisor. A chunk that would end beyond `capacity` is left out; the total in
    `state` then says what is needed."""
    index = lookback.ticket(state)
    first = index * CHUNK
    block = tl.arange(0, BLOCKS)
    inside = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    # Numbers within a chunk take 32 bits: 64 would double the registers of every address.
    rest = tl.minimum(count - first, CHUNK).to(tl.int32)
    exists = inside < rest
    # Eight values of 16 bits a lane would be one load of 16 bytes, and more live registers.
    places = tl.max_contiguous(inside, (1, 4)) if SIZE == 2 else inside
    bits = tl.load((values + first) + places, mask=exists, other=0)
    bits = pattern.widened(bits, DTYPE)
    if STATISTICS:
        measure(bits, exists, statistics + 5 * index, DTYPE)
    if KIND == POINTWISE:
        header, codes, filled, base = pointwise(bits, seed, DTYPE)
    else:
        header, codes, filled = linear(
            bits, first, inverse0, inverse1, limit0, limit1, seed, KIND, DTYPE
        )

    raw = header == RAW
    coded = (header != 0) & (header != RAW)
    sparse = coded & ((header & 64) != 0)
    width = tl.where(coded, header & 31, 0)
    number = tl.where(sparse, tl.sum(filled.to(tl.int32), 1), BLOCK)
    data = (width * number + 7) >> 3
    lead = coded.to(tl.int32) * 8 if KIND == POINTWISE else coded.to(tl.int32) * 0
    here = tl.minimum(tl.maximum(rest - block * BLOCK, 0), BLOCK)
    size = tl.where(raw, here * SIZE, lead + sparse.to(tl.int32) * 4 + data)
    blocks = (rest + (BLOCK - 1)) // BLOCK
    length = blocks + tl.sum(size, 0)

    begin = lookback.start_of(state, index, chunks, length) + PARAMETERS + 4 * chunks
    fits = begin + length <= capacity
    if index == 0:
        _parameters(payload, step0, step1, seed, KIND, capacity >= PARAMETERS)
    table = PARAMETERS + 4 * index
    strings.put_scalar(payload + table, length, 4, table + 4 <= capacity)
    target = payload + begin
    tl.store(target + block, header.to(tl.uint8), mask=fits & (block < blocks))
    at = blocks + tl.cumsum(size, 0) - size
    if KIND == POINTWISE:
        strings.put_integer(target, base, at, coded & fits, 8)
    at += lead
    column = tl.arange(0, BLOCK)[None, :]
    bitmap = tl.sum(filled.to(tl.uint32) << column.to(tl.uint32), 1)
    strings.put_integer(target, bitmap.to(tl.uint32), at, sparse & fits, 4)
    at += sparse.to(tl.int32) * 4
    data = tl.where(fits, data, 0)
    _data(target, codes, filled, at, width, sparse, data)
    if tl.max(raw.to(tl.int32), 0) > 0:
        # Rare, so the values are read again rather than held in registers until here.
        chosen = raw[:, None] & exists & fits
        verbatim = tl.load((values + first) + inside, mask=chosen, other=0)
        each = at[:, None] + column * SIZE
        for i in tl.static_range(SIZE):
            byte = (verbatim >> (8 * i)) & 255
            tl.store(target + each + i, byte.to(tl.uint8), mask=chosen)


@triton.jit
def _parameters(payload, step0, step1, seed, KIND: tl.constexpr, fits):
    strings.put_scalar(payload, tl.full((), KIND, tl.int64), 8, fits)
    strings.put_scalar(payload + 8, step0, 8, fits)
    strings.put_scalar(payload + 16, step1, 8, fits)
    strings.put_scalar(payload + 24, seed, 8, fits)


@triton.jit
def _data(target, codes, filled, at, width, sparse, data):
    """The codes of all blocks: planes of bits where dense, one after the other where sparse.

    Word k of a dense block is plane k; of a sparse block it is what falls into the bits
    32k … 32k + 31 when each code stands `width` bits after the one before it.
    """
    column = tl.arange(0, BLOCK)[None, :].to(tl.uint32)
    rank = tl.cumsum(filled.to(tl.int32), 1) - filled.to(tl.int32)
    place = rank * width[:, None]
    ones = (tl.full((BLOCKS,), 1, tl.uint32) << width.to(tl.uint32)) - 1
    # Where a position has no code of its own, it is 0.
    packed = codes.to(tl.uint32) & ones[:, None]
    slot = tl.arange(0, AT_ONCE)[None, :]
    most = tl.max((data + 3) >> 2, 0)
    for k0 in range(0, most, AT_ONCE):
        words = tl.zeros((BLOCKS, AT_ONCE), tl.uint32)
        for k in range(k0, tl.minimum(k0 + AT_ONCE, most)):
            part = tl.where(
                sparse[:, None],
                strings.shifted(packed, place - 32 * k),
                ((packed >> k) & 1) << column,
            )
            word = tl.sum(part, 1).to(tl.uint32)
            words = tl.where(slot == k - k0, word[:, None], words)
        strings.put_words(target, words, at + 4 * k0, data - 4 * k0, BLOCKS, AT_ONCE)
