"""`group`: min-max quantisation, 256 values at a time (docs/format.md, section 9).

A program does eight groups, whose flags are one byte. A group that is kept verbatim moves
all that follow it, which happens to few tensors: `encode` first writes as if there were none
and counts them; only then is it run again with every group's place known (PLACED).
"""

from __future__ import annotations

import triton
import triton.language as tl

from encke.ops.triton.kernels import bits as strings
from encke.ops.triton.kernels import dither, pattern

GROUP = tl.constexpr(256)
EIGHT = tl.constexpr(8)
HEAD = tl.constexpr(8)


@triton.jit
def _extent(DTYPE: tl.constexpr):
    """The ranges that are coded: the least and the most, 2^-118 and 2^120 in binary32."""
    if DTYPE == 2:
        return 9.332636185032189e-302, 1.0715086071862673e301
    else:
        return 3.009265538105056e-36, 1.329227995784916e36


@triton.jit(do_not_specialize=["count", "groups", "seed", "code_bytes"])
def encode(
    values,
    payload,
    raws,
    before,
    count: tl.int64,
    groups: tl.int64,
    seed: tl.int64,
    code_bytes: tl.int64,
    BITS: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    DTYPE: tl.constexpr,
    SIZE: tl.constexpr,
    PLACED: tl.constexpr,
):
    """Eight groups.

    raws        int32, written: 1 for a group that must be verbatim
    before      read if PLACED: how many of the groups before are verbatim
    code_bytes  of all codes, behind which verbatim values lie
    """
    program = tl.program_id(0).to(tl.int64)
    group = program * EIGHT + tl.arange(0, EIGHT)
    first = program * (EIGHT * GROUP)
    inside = tl.arange(0, EIGHT)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    rest = tl.minimum(count - first, EIGHT * GROUP).to(tl.int32)
    exists = inside < rest
    found = tl.load((values + first) + inside, mask=exists, other=0)
    bits = pattern.widened(found, DTYPE)
    strange = pattern.magnitude(bits, DTYPE) >= pattern.infinity(DTYPE)
    x = pattern.real(tl.where(strange, 0, bits), DTYPE)
    low = tl.min(tl.where(exists, x, float("inf")), 1)
    high = tl.max(tl.where(exists, x, float("-inf")), 1)
    there = group < groups
    # Adding +0 makes a +0 of -0, whichever of the two minimum and maximum have found.
    low = tl.where(there, low, 0.0) + 0.0
    span = tl.where(there, high, 0.0) - low + 0.0
    least, most = _extent(DTYPE)
    raw = (tl.max(strange.to(tl.int32), 1) > 0) | (span > most)
    low = tl.where(raw, 0.0, low)
    span = tl.where(raw, 0.0, span)
    coded = span >= least
    LEVELS: tl.constexpr = 2**BITS - 1
    top = tl.zeros_like(span) + LEVELS
    step = tl.where(coded, _quotient(span, top, DTYPE), span)
    inverse = _quotient(top, tl.where(coded, span, 1.0), DTYPE)

    if STOCHASTIC:
        twice = dither.integers(seed, first, EIGHT, GROUP) * 2 + 1
        u = twice.to(x.dtype) * 7.62939453125e-06
    else:
        u = tl.zeros_like(x) + 0.5
    held = tl.where(exists & coded[:, None], x, low[:, None])
    scaled = (held - low[:, None]) * inverse[:, None] + u
    code = tl.minimum(scaled.to(tl.int32), LEVELS)
    code = tl.where(exists & coded[:, None], code, 0)

    tl.store(raws + group, raw.to(tl.int32), mask=there)
    if program == 0:
        strings.put_scalar(payload, tl.full((), BITS + 256 * STOCHASTIC, tl.int64), 8, True)
    flags = tl.sum((raw & there).to(tl.int32) << tl.arange(0, EIGHT), 0)
    tl.store(payload + HEAD + program, flags.to(tl.uint8))
    REAL: tl.constexpr = 8 if DTYPE == 2 else 4
    table = HEAD + (groups + 7) // 8
    at = table + group * (2 * REAL)
    strings.put_integer(payload, _bits_of(low, DTYPE), at, there, REAL)
    strings.put_integer(payload, _bits_of(step, DTYPE), at + REAL, there, REAL)

    BYTES: tl.constexpr = GROUP // 8 * BITS
    data = payload + table + groups * (2 * REAL)
    earlier = tl.load(before + group, mask=there, other=0) if PLACED else group * 0
    each: tl.constexpr = 8 // BITS
    parts = tl.reshape(code, (EIGHT, BYTES, each)) << (tl.arange(0, each) * BITS)[None, None, :]
    packed = tl.sum(parts, 2)
    column = tl.arange(0, BYTES)[None, :]
    here = tl.minimum(tl.maximum(rest - tl.arange(0, EIGHT) * GROUP, 0), GROUP)
    limit = tl.where(raw, 0, (here * BITS + 7) >> 3)
    place = (group - earlier) * BYTES
    tl.store(data + place[:, None] + column, packed.to(tl.uint8), mask=column < limit[:, None])
    if PLACED and (flags != 0):
        verbatim = code_bytes + earlier * (GROUP * SIZE)
        spot = verbatim[:, None] + tl.arange(0, GROUP)[None, :] * SIZE
        for i in tl.static_range(SIZE):
            byte = (bits >> (8 * i)) & 255
            tl.store(data + spot + i, byte.to(tl.uint8), mask=exists & raw[:, None])


@triton.jit
def _quotient(a, b, DTYPE: tl.constexpr):
    """Rounded once: in binary32 a plain `/` may be off by two units in the last place."""
    if DTYPE == 2:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def _bits_of(real, DTYPE: tl.constexpr):
    return real.to(tl.int64 if DTYPE == 2 else tl.int32, bitcast=True)


@triton.jit(do_not_specialize=["count", "groups", "end", "code_bytes"])
def decode(
    payload,
    raws,
    before,
    values,
    count: tl.int64,
    groups: tl.int64,
    end: tl.int64,
    code_bytes: tl.int64,
    BITS: tl.constexpr,
    DTYPE: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Eight groups. Whatever the payload, nothing outside of it is read."""
    program = tl.program_id(0).to(tl.int64)
    group = program * EIGHT + tl.arange(0, EIGHT)
    there = group < groups
    first = program * (EIGHT * GROUP)
    column = tl.arange(0, GROUP)[None, :]
    inside = tl.arange(0, EIGHT)[:, None] * GROUP + column
    exists = first + inside < count
    raw = tl.load(raws + group, mask=there, other=0) != 0
    earlier = tl.load(before + group, mask=there, other=0)

    REAL: tl.constexpr = 8 if DTYPE == 2 else 4
    kind: tl.constexpr = tl.uint64 if DTYPE == 2 else tl.uint32
    real: tl.constexpr = tl.float64 if DTYPE == 2 else tl.float32
    table = HEAD + (groups + 7) // 8
    at = table + group * (2 * REAL)
    low = strings.get_integer(payload, at, end, there, REAL, kind).to(real, bitcast=True)
    step = strings.get_integer(payload, at + REAL, end, there, REAL, kind)
    step = step.to(real, bitcast=True)

    data = table + groups * (2 * REAL)
    spot = data + (group - earlier) * (GROUP // 8 * BITS)
    spot = spot[:, None] + ((column * BITS) >> 3)
    coded = exists & (raw[:, None] == 0)
    byte = tl.load(payload + spot, mask=coded & (spot < end), other=0).to(tl.int32)
    code = (byte >> ((column * BITS) & 7)) & (2**BITS - 1)
    y = code.to(real) * step[:, None] + low[:, None]
    found = pattern.rounded(y, DTYPE)
    if tl.max(raw.to(tl.int32), 0) > 0:
        spot = data + code_bytes + earlier * (GROUP * SIZE)
        spot = spot[:, None] + column * SIZE
        chosen = exists & raw[:, None]
        verbatim = strings.get_integer(payload, spot, end, chosen, SIZE, kind)
        found = tl.where(raw[:, None], verbatim.to(found.dtype), found)
    tl.store((values + first) + inside, found.to(values.dtype.element_ty), mask=exists)
