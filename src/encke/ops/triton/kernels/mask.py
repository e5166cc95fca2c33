"""`mask`: eight truth values to a byte (docs/format.md, section 10), and ReLU's side of it."""

from __future__ import annotations

import triton
import triton.language as tl

from encke.ops.triton.kernels import pattern


@triton.jit(do_not_specialize=["count"])
def pack(values, payload, count: tl.int64, DTYPE: tl.constexpr, ROWS: tl.constexpr):
    """ROWS bytes of truth values (DTYPE 0), or of floats: 1 unless x <= 0, so for NaN too."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)
    place = tl.arange(0, 8)[None, :]
    inside = row[:, None] * 8 + place
    exists = first * 8 + inside < count
    bits = tl.load((values + first * 8) + inside, mask=exists, other=0)
    if DTYPE == 0:
        truth = bits != 0
    else:
        bits = pattern.widened(bits, DTYPE)
        size = pattern.magnitude(bits, DTYPE)
        above = (pattern.is_negative(bits, DTYPE) == 0) | (size > pattern.infinity(DTYPE))
        truth = (size != 0) & above
    byte = tl.sum(truth.to(tl.int32) << place, 1)
    tl.store((payload + first) + row, byte.to(tl.uint8), mask=(first + row) * 8 < count)


@triton.jit(do_not_specialize=["count"])
def unpack(payload, values, count: tl.int64, ONE: tl.constexpr, ROWS: tl.constexpr):
    """The bits as 0 and ONE, the integer that stands for true in `values`."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)
    place = tl.arange(0, 8)[None, :]
    byte = tl.load((payload + first) + row, mask=(first + row) * 8 < count, other=0)
    kind: tl.constexpr = values.dtype.element_ty
    bit = ((byte.to(tl.int32)[:, None] >> place) & 1).to(kind)
    inside = row[:, None] * 8 + place
    exists = first * 8 + inside < count
    tl.store((values + first * 8) + inside, bit * ONE, mask=exists)


@triton.jit(do_not_specialize=["count", "channels", "inner"])
def affine(
    x,
    payload,
    gain,
    shift,
    out,
    count: tl.int64,
    channels: tl.int64,
    inner: tl.int64,
    ROWS: tl.constexpr,
):
    """bit ? x · gain[c] + shift[c] : 0, in binary32; c = i / inner % channels of value i."""
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = at < count
    channel = (at // inner) % channels
    byte = tl.load(payload + (at >> 3), mask=exists, other=0).to(tl.int32)
    y = tl.load(x + at, mask=exists, other=0.0) * tl.load(
        gain + channel, mask=exists, other=0.0
    )
    y = y + tl.load(shift + channel, mask=exists, other=0.0)
    chosen = ((byte >> (at & 7).to(tl.int32)) & 1) != 0
    tl.store(out + at, tl.where(chosen, y, 0.0), mask=exists)
