"""`entropy`: quantised codes through the entropy stage (docs/format.md, section 7)."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.quantiser import PLAIN, POINTWISE, Quantiser
from encke.ops.reference import lag as lagged
from encke.ops.reference import rans
from encke.ops.reference.digits import VERBATIM, ZERO
from encke.ops.reference.quantise import (
    PARAMETER_BYTES,
    PATTERN,
    dither_of,
    linear_codes,
    linear_values,
    pattern,
    pointwise_codable,
    pointwise_levels,
    pointwise_values,
    read_parameters,
    write_parameters,
)
from encke.ops.reference.rans import CODED, CODED_TIER1, MODE_VERBATIM, MODE_ZERO

#: Codes of the pointwise kind stay within ±2^30.
_FARTHEST = 2**30


def encode(x: Tensor, q: Quantiser) -> Tensor:
    """The payload of the values `x`, on their device; their shape says which are neighbours."""
    lag = lagged.choose(x, q)
    x = x.reshape(-1)
    device = x.device
    anchor = _anchor(x, q) if q.kind == POINTWISE else 0
    u = dither_of(q, x.numel(), x.dtype, device)
    pages = rans.split(x)
    modes: dict[int, int] = {}
    codes: dict[int, Tensor] = {}
    for page, values in pages.items():
        first = page * rans.CHUNK
        own_u = u[first : first + values.numel()] if u.dim() else u
        if q.kind == POINTWISE:
            modes[page], found = CODED, _pointwise_codes(values, q, anchor)
        elif lag is not None:
            modes[page], found = CODED, lagged.codes(values, q, own_u, lag, first=first)
        else:
            modes[page], found = _linear_codes(values, q, own_u)
        if bool((found == (0 if q.kind == PLAIN and lag is None else ZERO)).all()):
            modes[page] = MODE_ZERO
        elif int((found == VERBATIM).sum()) * 4 > values.numel():
            modes[page] = MODE_VERBATIM
        else:
            codes[page] = found
    marked = q.kind != PLAIN or lag is not None
    coded = rans.encode_chunks(codes, kind=q.kind, seed=q.seed, marked=marked)
    chunks: list[Tensor] = []
    for page, values in pages.items():
        parts = [rans.mode_bytes(modes[page], device)]
        if page in codes:
            kept = values[codes[page] == VERBATIM]
            parts += [coded.bodies[page], pattern(kept).view(torch.uint8)]
        verbatim = [rans.mode_bytes(MODE_VERBATIM, device), pattern(values).view(torch.uint8)]
        shorter = sum(p.numel() for p in parts) <= sum(p.numel() for p in verbatim)
        chosen = parts if shorter and modes[page] != MODE_VERBATIM else verbatim
        chunks.append(torch.cat(chosen))
    own = coded.own
    if lag is not None:
        own = own[:6] + bytes([own[6] | lagged.FLAG])
    head = write_parameters(q, own)
    if pages and q.kind == POINTWISE:
        head += struct.pack("<Q", anchor)
    if lag is not None:
        head += lag.to_bytes()
    start = torch.tensor(list(head), dtype=torch.uint8, device=device)
    return torch.cat([start, rans.join(coded.tables, chunks, device)]) if pages else start


def _linear_codes(values: Tensor, q: Quantiser, u: Tensor) -> tuple[int, Tensor]:
    """The chunk's mode by its tier, and its codes."""
    magnitude = values.abs().to(torch.float64)
    finite = torch.isfinite(values)
    above = int((finite & (magnitude > q.limit0)).sum())
    first_tier = above * 64 < values.numel()
    step, limit = (q.step0, q.limit0) if first_tier else (q.step1, q.limit1)
    held = finite & (magnitude <= limit)
    codes = linear_codes(torch.where(held, values, 0), q.kind, step, u)
    codes = torch.where(held, codes, VERBATIM)
    if q.kind != PLAIN:
        codes = torch.where(values == 0, ZERO, codes)
    return (CODED if first_tier else CODED_TIER1), codes


def _anchor(x: Tensor, q: Quantiser) -> int:
    """The level from which codes are counted: in the middle, so that most are small."""
    codable = pointwise_codable(x)
    levels = pointwise_levels(x[codable], q.seed)
    return int(levels.median()) if levels.numel() else 0


def _pointwise_codes(values: Tensor, q: Quantiser, anchor: int) -> Tensor:
    difference = pointwise_levels(values, q.seed) - anchor
    held = pointwise_codable(values) & (difference.abs() < _FARTHEST // 2)
    codes = torch.where(held, 2 * difference + (values < 0), VERBATIM)
    return torch.where(values == 0, ZERO, codes).to(torch.int32)


def decode(payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The `count` values of a payload; `CorruptStreamError` if it cannot be one."""
    q, own = read_parameters(payload, dtype)
    body = payload[PARAMETER_BYTES:]
    predicts = lagged.applies(dtype, q.kind) and bool(own[6] & lagged.FLAG)
    if count == 0:
        if body.numel() or predicts:
            raise CorruptStreamError(f"payload has {body.numel()} bytes too many for no values")
        return torch.empty(0, dtype=dtype, device=payload.device)
    anchor = 0
    if q.kind == POINTWISE:
        if body.numel() < 8:
            raise CorruptStreamError("payload ends before the level its codes count from")
        (anchor,) = struct.unpack("<Q", bytes(body[:8].tolist()))
        body = body[8:]
    lag = None
    if predicts:
        lag = lagged.Lag.from_bytes(bytes(body[: lagged.BYTES].tolist()))
        body = body[lagged.BYTES :]
        own = own[:6] + bytes([own[6] & ~lagged.FLAG])
    chunks = rans.decode_chunks(
        own,
        body,
        count,
        kind=q.kind,
        seed=q.seed,
        verbatim_bytes=dtype.itemsize,
        marked=q.kind != PLAIN or predicts,
    )
    u = dither_of(q, count, dtype, payload.device)
    out = torch.zeros(count, dtype=PATTERN[dtype], device=payload.device)
    for page, chunk in enumerate(chunks):
        here = slice(page * rans.CHUNK, page * rans.CHUNK + chunk.size)
        if chunk.codes is not None:
            own_u = u[here] if u.dim() else u
            out[here] = _chunk_patterns(chunk, q, anchor, own_u, dtype, lag, here.start)
        elif chunk.mode == MODE_VERBATIM:
            out[here] = chunk.rest.clone().view(PATTERN[dtype])
    return out.view(dtype)


def _chunk_patterns(
    chunk: rans.Chunk,
    q: Quantiser,
    anchor: int,
    u: Tensor,
    dtype: torch.dtype,
    lag: lagged.Lag | None,
    first: int,
) -> Tensor:
    """The bit patterns of a coded chunk's values."""
    assert chunk.codes is not None
    coded = (chunk.codes != VERBATIM) & (chunk.codes != ZERO)
    codes = torch.where(coded, chunk.codes, 0)
    if q.kind == POINTWISE:
        if bool((codes.abs() > _FARTHEST).any()):
            raise CorruptStreamError("payload has a pointwise code beyond 2^30")
        values = pointwise_values(codes, anchor, q.seed, dtype)
    else:
        step = q.step0 if chunk.mode == CODED else q.step1
        values = linear_values(codes, q.kind, step, u, dtype)
        if lag is not None:
            values = lagged.values_of(values, coded, lag, first=first)
    patterns = torch.where(coded, pattern(values), 0)
    patterns[chunk.codes == VERBATIM] = chunk.rest.clone().view(PATTERN[dtype])
    return patterns
