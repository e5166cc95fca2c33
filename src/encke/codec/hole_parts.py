"""A payload of a field with holes, put together and taken apart: docs/format.md, section 14."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from encke.errors import CorruptStreamError

MOST_PATTERNS = 15
_HEAD = struct.Struct("<BBHIQQQ")
_UNIT = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class HoleParts:
    """What a payload is made of.

    values    how many values there are
    bitmaps   where the holes are, then where each pattern but the last is
    patterns  bits of what holes have in them, as signed integers
    others    bytes of further patterns, one for each hole that has none of the table
    inner     payload of the values
    """

    values: int
    bitmaps: Sequence[Tensor]
    patterns: Sequence[int]
    others: Tensor
    inner: Tensor


def join(parts: HoleParts, *, count: int, size: int) -> Tensor:
    """The payload for `count` positions whose values have `size` bytes."""
    device = parts.inner.device
    mask = (1 << 8 * size) - 1
    head = _HEAD.pack(
        len(parts.patterns),
        0,
        0,
        0,
        parts.values,
        parts.others.numel() // size,
        parts.inner.numel(),
    )
    head += struct.pack(f"<{len(parts.bitmaps)}Q", *(b.numel() for b in parts.bitmaps))
    head += b"".join((p & mask).to_bytes(size, "little") for p in parts.patterns)
    pieces = [torch.frombuffer(bytearray(head), dtype=torch.uint8), *parts.bitmaps]
    pieces = [piece.to(device) for piece in (*pieces, parts.others)]
    pieces.append(_zeros(-sum(p.numel() for p in pieces) % _UNIT, device))
    pieces.append(parts.inner)
    pieces.append(_zeros(_least(count) - sum(p.numel() for p in pieces), device))
    return torch.cat(pieces)


def part(payload: Tensor, *, count: int, size: int) -> HoleParts:
    """The inverse of `join`; every rule that needs no bitmap is checked."""
    total = payload.numel()
    if total < _least(count):
        raise CorruptStreamError(
            f"payload has {total} bytes, {count} values take at least {_least(count)}"
        )
    head = bytes(payload[: _HEAD.size + 16 * (MOST_PATTERNS + 1)].cpu().numpy())
    many, zero8, zero16, zero32, values, others, length = _HEAD.unpack_from(head)
    images = many + (1 if others else 0)
    table = struct.Struct(f"<{images}Q")
    at = _HEAD.size + table.size + many * size
    holes = count - values
    if (
        zero8
        or zero16
        or zero32
        or many > MOST_PATTERNS
        or not 0 < many <= holes
        or others > holes
        or len(head) < at
    ):
        raise CorruptStreamError("payload has an impossible head for a field with holes")
    lengths = (*table.unpack_from(head, _HEAD.size), others * size)
    raw = head[_HEAD.size + table.size : at]
    pieces: list[Tensor] = []
    for piece in lengths:
        if piece > total - at:
            raise CorruptStreamError(f"payload of {total} bytes has a part of {piece}")
        pieces.append(payload[at : at + piece])
        at += piece
    start = -(-at // _UNIT) * _UNIT
    padding = (payload[at:start], payload[start + length :])
    if length > total - start or any(bool(p.any()) for p in padding):
        raise CorruptStreamError(
            f"payload of {total} bytes does not end with the {length} bytes of its values"
        )
    return HoleParts(
        values=values,
        bitmaps=pieces[:-1],
        patterns=[
            int.from_bytes(raw[i : i + size], "little", signed=True)
            for i in range(0, len(raw), size)
        ],
        others=pieces[-1],
        inner=payload[start : start + length],
    )


def _least(count: int) -> int:
    """A short payload cannot claim a huge tensor."""
    return _HEAD.size + 8 * -(-count // 65536)


def _zeros(count: int, device: torch.device) -> Tensor:
    return torch.zeros(max(0, count), dtype=torch.uint8, device=device)
