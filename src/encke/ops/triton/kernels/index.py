"""`index`: integers as their distance from a chunk's smallest (docs/format.md, section 11)."""

from __future__ import annotations

import triton
import triton.language as tl

from encke.ops.triton.kernels import bits as strings
from encke.ops.triton.kernels import lookback

CHUNK = tl.constexpr(8192)
GROUP = tl.constexpr(32)
GROUPS = tl.constexpr(256)


@triton.jit(do_not_specialize=["count", "chunks", "capacity"])
def encode(
    values,
    payload,
    state,
    count: tl.int64,
    chunks: tl.int64,
    capacity: tl.int64,
    WIDE: tl.constexpr,
):
    """One chunk. 32 codes of w bits are w words, so words never cross groups of 32. A chunk
    that would end beyond `capacity` is left out. WIDE: the integers have 64 bits."""
    index = lookback.ticket(state)
    first = index * CHUNK
    group = tl.arange(0, GROUPS)
    column = tl.arange(0, GROUP)[None, :]
    inside = group[:, None] * GROUP + column
    rest = tl.minimum(count - first, CHUNK).to(tl.int32)
    exists = inside < rest
    x = tl.load((values + first) + inside, mask=exists, other=0).to(tl.int64)
    low = tl.min(tl.min(tl.where(exists, x, 0x7FFFFFFFFFFFFFFF), 1), 0)
    high = tl.max(tl.max(tl.where(exists, x, -0x8000000000000000), 1), 0)
    # The difference wraps; read as unsigned it is the distance.
    place = tl.arange(0, 64).to(tl.uint64)
    extent = (high - low).to(tl.uint64)
    width = tl.sum(((extent >> place) > 0).to(tl.int32), 0)
    code = tl.where(exists, x - low, 0).to(tl.uint64 if WIDE else tl.uint32)
    length = (rest * width + 7) >> 3

    begin = lookback.start_of(state, index, chunks, length) + 9 * chunks
    fits = begin + length <= capacity
    table = 9 * chunks <= capacity
    strings.put_scalar(payload + 8 * index, low, 8, table)
    tl.store(payload + 8 * chunks + index, width.to(tl.uint8), mask=table)
    at = group * 4 * width
    limit = tl.where(fits, tl.minimum(length - at, 4 * width), 0)
    slot = tl.arange(0, strings.WORDS)[None, :]
    for k0 in range(0, width, strings.WORDS):
        words = tl.zeros((GROUPS, strings.WORDS), tl.uint32)
        for k in range(k0, tl.minimum(k0 + strings.WORDS, width)):
            word = tl.sum(strings.shifted(code, column * width - 32 * k), 1).to(tl.uint32)
            words = tl.where(slot == k - k0, word[:, None], words)
        strings.put_words(
            payload + begin, words, at + 4 * k0, limit - 4 * k0, GROUPS, strings.WORDS
        )


@triton.jit(do_not_specialize=["count", "chunks", "end"])
def decode(
    payload,
    ends,
    values,
    count: tl.int64,
    chunks: tl.int64,
    end: tl.int64,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """ROWS groups of 32. Whatever the payload, nothing outside of it is read."""
    program = tl.program_id(0).to(tl.int64)
    index = program // (GROUPS // ROWS)
    first = program * (ROWS * GROUP)
    inside = tl.arange(0, ROWS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    exists = first + inside < count
    begin = tl.load(ends + index)
    stop = tl.minimum(end - begin, 1 << 30).to(tl.int32)
    low = tl.zeros((), tl.int64)
    for i in tl.static_range(8):
        low = low | (tl.load(payload + 8 * index + i).to(tl.int64) << (8 * i))
    width = tl.load(payload + 8 * chunks + index).to(tl.int32)
    bit = ((first - index * CHUNK).to(tl.int32) + inside) * width
    kind: tl.constexpr = tl.uint64 if WIDE else tl.uint32
    wide = tl.zeros((ROWS, GROUP), tl.int32) + width
    code = strings.get_code(payload + begin, bit, wide, width, stop, exists, kind)
    found = low + code.to(tl.int64)
    tl.store((values + first) + inside, found.to(values.dtype.element_ty), mask=exists)
