"""Bitmaps of fields with holes (docs/format.md, section 14), a row at a time."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.reference.bit_coder import EVEN, BitReader, BitWriter, Chance

_Bits = npt.NDArray[np.bool_]
_HEAD = struct.Struct("<I")
_LONGEST = 39
_EDGE = 2  # bits outside that a neighbour may be


def planes_of(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Planes, rows and columns of a shape, extents of 1 left out.

    >>> planes_of((7, 1, 2, 3, 4)), planes_of((5,))
    ((14, 3, 4), (1, 1, 5))
    """
    wide = [extent for extent in shape if extent != 1]
    padded = [1] * max(0, 2 - len(wide)) + wide
    return math.prod(padded[:-2]), padded[-2], padded[-1]


class _Walk:
    """Codes the planes of an image one after the other, or fills them in if it reads.

    Every row has two empty bits on either side, every plane two empty rows above it and one
    below.
    """

    def __init__(self, image: _Bits, domain: _Bits | None, back: int) -> None:
        _, self.rows, self.columns = image.shape
        self.back = back
        self.image = _framed(image)
        self.domain = domain
        self.alone = [Chance() for _ in range(1024)]
        self.beside = [Chance() for _ in range(2048)]
        self.repeats = [Chance() for _ in range(2)]
        self.quiet = [[Chance() for _ in range(_LONGEST + 1)] for _ in range(2)]
        self.repeated = 0

    def learned(self, bit: int, chance: Chance) -> int:
        raise NotImplementedError

    def even(self, bit: int) -> int:
        raise NotImplementedError

    def plane(self, p: int) -> None:
        own = self.image[p]
        other = self.image[p - self.back] if p >= self.back else None
        within = None if self.domain is None else self.domain[p]
        if other is not None:
            repeated = other[2:-1, _EDGE:-_EDGE]
            repeated = repeated if within is None else repeated & within
            inside = own[2:-1, _EDGE:-_EDGE]
            self.repeated = self.learned(
                int(np.array_equal(inside, repeated)), self.repeats[self.repeated]
            )
            if self.repeated:
                inside[:] = repeated
                return
        for r in range(self.rows):
            self.row(own, other, None if within is None else within[r], r + 2)

    def row(self, own: _Bits, other: _Bits | None, within: _Bits | None, r: int) -> None:
        n, nn = own[r - 1], own[r - 2]
        # The neighbours outside this row, the lowest bit of the context first.
        if other is None:
            near = [_moved(n, d) for d in (-2, -1, 0, 1, 2)]
            near += [_moved(nn, d) for d in (-1, 0, 1)]
            chances = self.alone
        else:
            near = [_moved(n, d) for d in (-1, 0, 1)] + [_moved(nn, 0)]
            near += [_moved(other[r], d) for d in (-1, 0, 1)]
            near += [_moved(other[r - 1], 0), _moved(other[r + 1], 0)]
            chances = self.beside
        quiet = [~np.any(near, axis=0), np.all(near, axis=0)]
        if within is not None:
            quiet[1] &= within
        context = np.packbits(near, axis=0, bitorder="little").astype(np.int64)
        context = context[0] << 2 if len(near) == 8 else (context[0] | context[1] << 8) << 2
        line = own[r]
        x = 0
        while x < self.columns:
            w2, w1 = int(line[x]), int(line[x + 1])
            if w2 == w1 and quiet[w1][x]:
                x = self.stretch(line, quiet[w1], within, w1, x)
            elif within is not None and not within[x]:
                x += 1
            else:
                chance = chances[w2 | w1 << 1 | int(context[x])]
                line[x + _EDGE] = self.learned(int(line[x + _EDGE]), chance)
                x += 1

    def stretch(self, line: _Bits, quiet: _Bits, within: _Bits | None, v: int, x: int) -> int:
        """The end of the bits from x on around which everything is v, or what ends it."""
        loud = np.flatnonzero(~quiet[x:])
        length = int(loud[0]) if loud.size else self.columns - x
        bits = line[x + _EDGE : x + _EDGE + length]
        different = np.flatnonzero(bits != v)
        at = int(different[0]) if different.size else length
        whole = self.learned(
            int(at == length), self.quiet[v][min(length.bit_length(), _LONGEST)]
        )
        if whole:
            bits[:] = v
            return x + length
        found = 0
        for i in range((length - 1).bit_length() - 1, -1, -1):
            found = found << 1 | self.even(at >> i & 1)
        if found >= length or (within is not None and not v and not within[x + found]):
            raise CorruptStreamError("payload has a bitmap with a bit outside its place")
        bits[:found] = v
        bits[found] = 1 - v
        return x + found + 1


class _Putting(_Walk):
    def __init__(self, image: _Bits, domain: _Bits | None, back: int) -> None:
        super().__init__(image, domain, back)
        self.writer = BitWriter()

    def learned(self, bit: int, chance: Chance) -> int:
        self.writer.learned(bit, chance)
        return bit

    def even(self, bit: int) -> int:
        self.writer.put(bit, EVEN)
        return bit


class _Getting(_Walk):
    def __init__(self, data: bytes, image: _Bits, domain: _Bits | None, back: int) -> None:
        super().__init__(image, domain, back)
        self.reader = BitReader(data)

    def learned(self, bit: int, chance: Chance) -> int:
        return self.reader.learned(chance)

    def even(self, bit: int) -> int:
        return self.reader.get(EVEN)


def _framed(image: _Bits) -> _Bits:
    return np.pad(image, ((0, 0), (2, 1), (_EDGE, _EDGE)))


def _moved(row: _Bits, by: int) -> _Bits:
    """Bit x of the result is bit x + by of the row, without its frame."""
    stop = row.size - _EDGE + by
    return row[_EDGE + by : stop]


def _array(x: Tensor, planes: tuple[int, int, int]) -> _Bits:
    array: _Bits = x.cpu().numpy().astype(np.bool_).reshape(planes)
    return array


def _best_back(image: _Bits, shape: tuple[int, ...]) -> int:
    wide = [extent for extent in shape if extent != 1]
    if len(wide) < 4 or len(image) <= wide[-3]:
        return 1
    levels = wide[-3]
    level = np.count_nonzero(image[levels:] ^ image[levels - 1 : -1])
    time = np.count_nonzero(image[levels:] ^ image[:-levels])
    return levels if time < level else 1


def encode(x: Tensor, shape: tuple[int, ...], domain: Tensor | None) -> Tensor:
    """The payload of truth values; where `domain` is given and false, they are false."""
    planes = planes_of(shape)
    image = _array(x, planes)
    back, data = 1, b""
    if image.size:
        back = _best_back(image, shape)
        walk = _Putting(image, None if domain is None else _array(domain, planes), back)
        for p in range(planes[0]):
            walk.plane(p)
        data = walk.writer.finish()
    payload = bytearray(_HEAD.pack(back) + data)
    return torch.frombuffer(payload, dtype=torch.uint8).to(x.device)


def decode(payload: Tensor, shape: tuple[int, ...], domain: Tensor | None) -> Tensor:
    """The truth values of a payload, or `CorruptStreamError`."""
    data = payload.cpu().numpy().tobytes()
    if len(data) < _HEAD.size:
        raise CorruptStreamError(f"payload has a bitmap of {len(data)} bytes, least is 4")
    (back,) = _HEAD.unpack_from(data)
    planes = planes_of(shape)
    size = math.prod(planes)
    if back < 1 or (size == 0 and len(data) > _HEAD.size):
        raise CorruptStreamError("payload has a bitmap with an impossible head")
    if size == 0:
        return torch.zeros(shape, dtype=torch.bool, device=payload.device)
    within = None if domain is None else _array(domain, planes)
    walk = _Getting(data[_HEAD.size :], np.zeros(planes, dtype=np.bool_), within, back)
    for p in range(planes[0]):
        walk.plane(p)
    image = np.ascontiguousarray(walk.image[:, 2:-1, _EDGE:-_EDGE])
    return torch.from_numpy(image).view(shape).to(payload.device)
