"""`fixed`: blocks of 32 codes, as wide as the largest (docs/format.md, section 5).

Dense and sparse blocks differ here in the order of their bits alone. Bit p of the code
that is the `rank`-th of those present is bit 32p + rank of a dense block's data, and bit
rank * width + p of a sparse block's. A dense block has all 32 positions present.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.quantiser import PLAIN, POINTWISE, Quantiser
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

BLOCK = 32
CHUNK = 8192
_BLOCKS = CHUNK // BLOCK
_WIDEST = 30

_ZERO, _RAW = 0x00, 0xFF
_TIER, _BITMAP, _UNSIGNED = 1 << 5, 1 << 6, 1 << 7


class _Blocks(NamedTuple):
    """The blocks of a tensor, ready to be laid out."""

    header: Tensor  # [B] int64, the header byte
    codes: Tensor  # [B, 32] int64
    present: Tensor  # [B, 32] bool, positions whose codes are stored
    base: Tensor  # [B] int64, smallest level of the block (pointwise)


def encode(x: Tensor, q: Quantiser) -> Tensor:
    """The payload of the values `x`, on their device."""
    x = x.reshape(-1)
    count, device = x.numel(), x.device
    parameters = torch.tensor(list(write_parameters(q)), dtype=torch.uint8, device=device)
    if count == 0:
        return parameters
    padded = torch.zeros(-(-count // BLOCK) * BLOCK, dtype=x.dtype, device=device)
    padded[:count] = x
    values = padded.view(-1, BLOCK)
    blocks = _pointwise_blocks(values, q) if q.kind == POINTWISE else _linear_blocks(values, q)

    width = blocks.header & 31
    raw, dense_bits = blocks.header == _RAW, blocks.present.sum(1)
    sparse = ~raw & (blocks.header & _BITMAP != 0)
    lead = 8 * ((blocks.header != _ZERO) & ~raw) if q.kind == POINTWISE else 0 * width
    size = lead + 4 * sparse + (width * dense_bits + 7) // 8
    raw_size = _values_in_block(count, device) * x.dtype.itemsize
    size = torch.where(raw, raw_size, size)

    lengths, starts, header_at = _lay_out(size)
    body = torch.zeros(int(lengths.sum()), dtype=torch.int32, device=device)
    body[header_at] = blocks.header.to(torch.int32)
    _put_bytes(body, starts, blocks.base.view(-1, 1), lead > 0)
    bits = 1 << torch.arange(BLOCK, device=device)
    bitmap = (blocks.present * bits).sum(1).view(-1, 1)
    _put_bytes(body, starts + lead, bitmap.to(torch.int32), sparse)
    _put_bytes(body, starts, pattern(values), raw, limit=raw_size)

    rank = blocks.present.cumsum(1) - 1
    first = (starts + lead + 4 * sparse) * 8
    width = torch.where(raw, 0, width)
    for plane in range(int(width.max())):
        here = blocks.present & (width > plane).view(-1, 1)
        position = first.view(-1, 1) + _bit_at(plane, rank, width, sparse)
        bit = (blocks.codes[here] >> plane) & 1
        position = position[here]
        body.index_add_(0, position >> 3, (bit << (position & 7)).to(torch.int32))
    table = lengths.to(torch.int32).view(torch.uint8)
    return torch.cat([parameters, table, body.to(torch.uint8)])


def _linear_blocks(values: Tensor, q: Quantiser) -> _Blocks:
    u = dither_of(q, values.numel(), values.dtype, values.device)
    u = u.view(-1, BLOCK) if u.dim() else u
    finite = torch.isfinite(values).all(1)
    largest = values.abs().amax(1).to(torch.float64)
    raw = ~finite | (largest > q.limit1)
    second = ~raw & (largest > q.limit0)
    # What a tier must not code is set to 0 first: its product may not fit an integer.
    held = torch.where(raw.view(-1, 1), 0, values)
    small = torch.where(second.view(-1, 1), 0, held)
    codes = torch.where(
        second.view(-1, 1),
        linear_codes(held, q.kind, q.step1, u),
        linear_codes(small, q.kind, q.step0, u),
    ).to(torch.int64)
    filled = codes != 0 if q.kind == PLAIN else held != 0
    codes = torch.where(filled, codes, 0)
    width, unsigned = _width(codes)
    raw = raw | (width > _WIDEST)
    if q.kind == PLAIN:
        sparse = 4 + (width * filled.sum(1) + 7) // 8 < 4 * width
    else:
        sparse = ~filled.all(1)
    header = width | second * _TIER | sparse * _BITMAP | unsigned * _UNSIGNED
    header = torch.where(filled.any(1), header, _ZERO)
    header = torch.where(raw, _RAW, header)
    present = torch.where(sparse.view(-1, 1), filled, True) & ~raw.view(-1, 1)
    return _Blocks(header, codes, present, torch.zeros_like(header))


def _pointwise_blocks(values: Tensor, q: Quantiser) -> _Blocks:
    filled = values != 0
    codable = pointwise_codable(values)
    levels = pointwise_levels(values, q.seed)
    ceiling = torch.iinfo(torch.int64).max
    base = torch.where(codable, levels, ceiling).amin(1)
    base = torch.where(codable.any(1), base, 0)
    spread = torch.where(codable, levels - base.view(-1, 1), 0)
    raw = (filled & ~codable).any(1) | (2 * spread.amax(1) + 1 >= 2**_WIDEST)
    codes = torch.where(codable & ~raw.view(-1, 1), 2 * spread + (values < 0), 0)
    width, _ = _width(codes)
    sparse = ~filled.all(1)
    header = width | sparse * _BITMAP | _UNSIGNED
    header = torch.where(filled.any(1), header, _ZERO)
    header = torch.where(raw, _RAW, header)
    present = torch.where(sparse.view(-1, 1), filled, True) & ~raw.view(-1, 1)
    return _Blocks(header, codes, present, base)


def _width(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Bits of each block's codes, and whether none of them is negative."""
    unsigned = (codes >= 0).all(1)
    # A negative c takes as many bits beside its sign as its complement -c - 1.
    magnitude = torch.where(codes < 0, ~codes, codes).amax(1)
    powers = 1 << torch.arange(_WIDEST + 2, device=codes.device)
    bits = (magnitude.view(-1, 1) >= powers).sum(1)
    return bits + (~unsigned).to(torch.int64), unsigned


def _values_in_block(count: int, device: torch.device) -> Tensor:
    blocks = -(-count // BLOCK)
    first = torch.arange(blocks, device=device) * BLOCK
    return (count - first).clamp(max=BLOCK)


def _lay_out(size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Chunk lengths, and where each block's data and header lie after the length table."""
    blocks, device = size.numel(), size.device
    chunk = torch.arange(blocks, device=device) // _BLOCKS
    lengths = torch.zeros(int(chunk[-1]) + 1, dtype=torch.int64, device=device)
    lengths.index_add_(0, chunk, size + 1)
    headers_before = ((chunk + 1) * _BLOCKS).clamp(max=blocks)
    data_before = size.cumsum(0) - size
    starts = headers_before + data_before
    inside = torch.arange(blocks, device=device) % _BLOCKS
    chunk_start = lengths.cumsum(0) - lengths
    return lengths, starts, chunk_start[chunk] + inside


def _put_bytes(
    body: Tensor, at: Tensor, words: Tensor, where: Tensor, *, limit: Tensor | None = None
) -> None:
    """Write the bytes of `words[b]` (at most `limit[b]`) at `at[b]` for the chosen blocks."""
    if not bool(where.any()):
        return
    data = words[where].contiguous().view(torch.uint8)
    inside = torch.arange(data.shape[1], device=body.device)
    target = at[where].view(-1, 1) + inside
    kept = inside < (data.shape[1] if limit is None else limit[where].view(-1, 1))
    kept = kept.expand_as(target)
    body[target[kept]] = data[kept].to(torch.int32)


def decode(payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The `count` values of a payload; `CorruptStreamError` if it cannot be one."""
    q, own = read_parameters(payload, dtype)
    if any(own):
        raise CorruptStreamError(f"payload has parameter bytes {own.hex()}, allowed are zeros")
    device = payload.device
    chunks, blocks = -(-count // CHUNK), -(-count // BLOCK)
    rest = payload.numel() - PARAMETER_BYTES
    if rest < 4 * chunks + blocks:
        raise CorruptStreamError(
            f"payload has {rest} bytes after its parameters, {count} values take at least "
            f"{4 * chunks + blocks}"
        )
    if count == 0:
        if rest:
            raise CorruptStreamError(f"payload has {rest} bytes too many for no values")
        return torch.empty(0, dtype=dtype, device=device)
    table = payload[PARAMETER_BYTES : PARAMETER_BYTES + 4 * chunks]
    lengths = table.clone().view(torch.int32).to(torch.int64) & 0xFFFF_FFFF
    body = payload[PARAMETER_BYTES + 4 * chunks :].contiguous()
    if int(lengths.sum()) != body.numel():
        raise CorruptStreamError(
            f"payload's chunks take {int(lengths.sum())} bytes, {body.numel()} are there"
        )
    raw_size = _values_in_block(count, device) * dtype.itemsize
    header, starts = _find_blocks(body, lengths, raw_size, pointwise=q.kind == POINTWISE)
    return _read_blocks(body, header, starts, q, dtype, count)


def _find_blocks(
    body: Tensor, lengths: Tensor, raw_size: Tensor, *, pointwise: bool
) -> tuple[Tensor, Tensor]:
    """Header byte and start of every block, having checked that all lie in their chunk.

    A sparse block's size is in its bitmap, so blocks are walked one after the other, in
    all chunks at once.
    """
    blocks, device = raw_size.numel(), body.device
    chunks = lengths.numel()
    inside = torch.full((chunks,), _BLOCKS, dtype=torch.int64, device=device)
    inside[-1] = blocks - (chunks - 1) * _BLOCKS
    if bool((lengths < inside).any()):
        raise CorruptStreamError("payload has a chunk too short for its block headers")
    ends = lengths.cumsum(0)
    begins = ends - lengths
    column = torch.arange(_BLOCKS, device=device)
    exists = column < inside.view(-1, 1)
    at = (begins.view(-1, 1) + column).clamp(max=body.numel() - 1)
    header = torch.where(exists, body[at].to(torch.int64), _ZERO)
    _check_headers(header, pointwise=pointwise)

    raw_sizes = torch.zeros(chunks * _BLOCKS, dtype=torch.int64, device=device)
    raw_sizes[:blocks] = raw_size
    raw_sizes = raw_sizes.view(chunks, _BLOCKS)
    width, raw = header & 31, header == _RAW
    lead = 8 * ((header != _ZERO) & ~raw) if pointwise else torch.zeros_like(header)
    sparse = ~raw & (header & _BITMAP != 0)
    starts = torch.zeros_like(header)
    position = begins + inside
    dense = torch.full_like(position, BLOCK)
    any_sparse = sparse.any(0).tolist()
    for b in range(int(inside.max())):
        starts[:, b] = position
        present = dense
        if any_sparse[b]:
            bitmap = _take(body, position + lead[:, b], 4)
            present = torch.where(sparse[:, b], _bits_of(bitmap).sum(1), dense)
        size = lead[:, b] + 4 * sparse[:, b] + (width[:, b] * present + 7) // 8
        position = position + torch.where(raw[:, b], raw_sizes[:, b], size)
    if not bool((position == ends).all()):
        raise CorruptStreamError("payload has a chunk whose blocks do not fill its length")
    return header.view(-1)[:blocks], starts.view(-1)[:blocks]


def _check_headers(header: Tensor, *, pointwise: bool) -> None:
    width = header & 31
    ordinary = (header != _ZERO) & (header != _RAW)
    signed = header & _UNSIGNED == 0
    broken = (width > _WIDEST) | (signed & ((width == 0) | pointwise))
    if bool((ordinary & broken).any()):
        byte = int(header[ordinary & broken][0])
        raise CorruptStreamError(f"payload has a block header {byte:#04x}, which none can be")


def _read_blocks(
    body: Tensor, header: Tensor, starts: Tensor, q: Quantiser, dtype: torch.dtype, count: int
) -> Tensor:
    width, raw = header & 31, header == _RAW
    zero = header == _ZERO
    lead = 8 * (~zero & ~raw) if q.kind == POINTWISE else torch.zeros_like(header)
    sparse = ~raw & (header & _BITMAP != 0)
    bitmap = _bits_of(_take(body, starts + lead, 4)).to(torch.bool)
    present = torch.where(sparse.view(-1, 1), bitmap, (~raw & ~zero).view(-1, 1))
    rank = present.cumsum(1) - 1
    first = ((starts + lead + 4 * sparse) * 8).view(-1, 1)
    width = torch.where(raw, 0, width).view(-1, 1)
    codes = torch.zeros(present.shape, dtype=torch.int64, device=body.device)
    for plane in range(int(width.max())):
        here = present & (width > plane)
        at = (first + _bit_at(plane, rank, width, sparse))[here]
        codes[here] |= ((body[at >> 3].to(torch.int64) >> (at & 7)) & 1) << plane
    negative = (header & _UNSIGNED == 0).view(-1, 1) & (codes << 1 >= 1 << width)
    codes = torch.where(negative, codes - (1 << width), codes)

    if q.kind == POINTWISE:
        base = _take(body, starts, 8).view(torch.int64).view(-1, 1)
        values = pointwise_values(codes, base, q.seed, dtype)
    else:
        u = dither_of(q, codes.numel(), dtype, body.device)
        u = u.view(-1, BLOCK) if u.dim() else u
        second = (header & _TIER != 0).view(-1, 1)
        values = torch.where(
            second,
            linear_values(codes, q.kind, q.step1, u, dtype),
            linear_values(codes, q.kind, q.step0, u, dtype),
        )
    out = torch.where(present, pattern(values), 0)
    if bool(raw.any()):
        verbatim = _take(body, starts[raw], BLOCK * dtype.itemsize).view(PATTERN[dtype])
        out[raw] = verbatim
    return out.view(-1)[:count].clone().view(dtype)


def _bit_at(plane: int, rank: Tensor, width: Tensor, sparse: Tensor) -> Tensor:
    """Where bit `plane` of each code lies in its block's data."""
    return torch.where(
        sparse.view(-1, 1), rank * width.view(-1, 1) + plane, rank + BLOCK * plane
    )


def _take(body: Tensor, at: Tensor, length: int) -> Tensor:
    """`length` bytes from each position; what lies behind the end is the last byte again."""
    index = at.view(-1, 1) + torch.arange(length, device=body.device)
    return body[index.clamp(max=body.numel() - 1)]


def _bits_of(data: Tensor) -> Tensor:
    """The bits of each row of bytes, least significant first, as int64."""
    shift = torch.arange(8, device=data.device)
    return ((data.to(torch.int64).unsqueeze(-1) >> shift) & 1).flatten(1)
