"""`index`: integers as their distance from a chunk's smallest (docs/format.md, section 11)."""

from __future__ import annotations

import torch
from torch import Tensor

from encke.errors import CorruptStreamError

CHUNK = 8192
ENTRY_BYTES = 9  # a chunk's base and width in the table


def encode(x: Tensor) -> Tensor:
    """The payload of the integers `x`, on their device."""
    x = x.reshape(-1)
    bases: list[int] = []
    widths: list[int] = []
    bodies: list[Tensor] = []
    for chunk in torch.split(x, CHUNK) if x.numel() else ():
        low, high = int(chunk.min()), int(chunk.max())
        width = (high - low).bit_length()
        bases.append(low)
        widths.append(width)
        # Differences wrap in int64; as bit patterns they are the unsigned distance.
        bodies.append(_pack(chunk.to(torch.int64) - low, width))
    table = torch.cat(
        [
            torch.tensor(bases, dtype=torch.int64).view(torch.uint8),
            torch.tensor(widths, dtype=torch.uint8),
        ]
    )
    return torch.cat([table.to(x.device), *bodies])


def decode(payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """`count` integers, or `CorruptStreamError`, whatever the payload."""
    chunks = -(-count // CHUNK)
    if payload.numel() < ENTRY_BYTES * chunks:
        raise CorruptStreamError(
            f"index has {payload.numel()} bytes, the table of {count} values alone "
            f"takes {ENTRY_BYTES * chunks}"
        )
    table = payload[: ENTRY_BYTES * chunks].cpu()
    bases = table[: 8 * chunks].clone().view(torch.int64).tolist()
    widths = table[8 * chunks :].tolist()
    limits = torch.iinfo(dtype)
    if any(not limits.min <= base <= limits.max for base in bases):
        raise CorruptStreamError(f"index has a base outside {dtype}")
    if any(width > 8 * dtype.itemsize for width in widths):
        raise CorruptStreamError(f"index has codes wider than {dtype}")
    sizes = [min(CHUNK, count - c * CHUNK) for c in range(chunks)]
    lengths = [-(-n * width // 8) for n, width in zip(sizes, widths, strict=True)]
    body = payload[ENTRY_BYTES * chunks :]
    if body.numel() != sum(lengths):
        raise CorruptStreamError(
            f"index has {body.numel()} bytes of codes, its widths say {sum(lengths)}"
        )
    out = torch.empty(count, dtype=dtype, device=payload.device)
    for c, packed in enumerate(torch.split(body, lengths)):
        codes = _unpack(packed, sizes[c], widths[c])
        out[c * CHUNK : c * CHUNK + sizes[c]] = (codes + bases[c]).to(dtype)
    return out


def _pack(codes: Tensor, width: int) -> Tensor:
    """Codes one after the other as a string of bits, the lowest bit first."""
    places = torch.arange(width, device=codes.device)
    bits = (codes.view(-1, 1) >> places & 1).to(torch.uint8).view(-1)
    padded = torch.zeros(-(-bits.numel() // 8) * 8, dtype=torch.uint8, device=codes.device)
    padded[: bits.numel()] = bits
    eight = torch.arange(8, dtype=torch.uint8, device=codes.device)
    return (padded.view(-1, 8) << eight).sum(1, dtype=torch.uint8)


def _unpack(packed: Tensor, count: int, width: int) -> Tensor:
    eight = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = (packed.view(-1, 1) >> eight & 1).view(-1)
    if bool(bits[count * width :].any()):
        raise CorruptStreamError("index has bits set behind its last code")
    places = torch.arange(width, device=packed.device)
    codes = bits[: count * width].view(count, width).to(torch.int64) << places
    return codes.sum(1)
