"""The adaptive coder of docs/format.md, section 8, for runs that are short or nearly zero.

An arithmetic coder of bits whose chances are learned on the way. Plain Python: one loop
over the codes that are not zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from encke.errors import CorruptStreamError

_TOP = 0xFFFF_FFFF
_EVEN = 32768
_LONGEST = 33
_LARGEST_CODE = 2**31 - 1


class _Chance:
    """The probability that a bit is 1, out of 65536: moves fast at first, then slower."""

    __slots__ = ("one", "seen")

    def __init__(self) -> None:
        self.one = _EVEN
        self.seen = 0

    def learn(self, bit: int) -> None:
        target = 65535 if bit else 0
        moved = self.one + (((target - self.one) * (65536 // (2 * self.seen + 3))) >> 15)
        self.one = min(max(moved, 32), 65503)
        if self.seen < 60:
            self.seen += 1


class _IntegerModel:
    """Chances of a positive integer: its number of bits, then the two below its top."""

    def __init__(self) -> None:
        self.more = [_Chance() for _ in range(_LONGEST)]
        self.second = [_Chance() for _ in range(_LONGEST)]
        self.third = [(_Chance(), _Chance()) for _ in range(_LONGEST)]


class _Interval:
    """The interval that all bits so far leave; its leading bytes are settled."""

    def __init__(self) -> None:
        self.low = 0
        self.high = _TOP

    def middle(self, one: int) -> int:
        return self.low + (((self.high - self.low) * one) >> 16)

    def narrow(self, bit: int, middle: int) -> None:
        if bit:
            self.high = middle
        else:
            self.low = middle + 1

    def settled(self) -> bool:
        return (self.low ^ self.high) < 1 << 24

    def shift(self) -> None:
        self.low = (self.low << 8) & _TOP
        self.high = (self.high << 8 | 255) & _TOP


class _Writer(_Interval):
    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()

    def put(self, bit: int, one: int) -> None:
        self.narrow(bit, self.middle(one))
        while self.settled():
            self.out.append(self.high >> 24)
            self.shift()

    def learned(self, bit: int, chance: _Chance) -> None:
        self.put(bit, chance.one)
        chance.learn(bit)

    def integer(self, model: _IntegerModel, v: int) -> None:
        bits = v.bit_length()
        for i in range(1, bits):
            self.learned(1, model.more[i - 1])
        if bits < _LONGEST:
            self.learned(0, model.more[bits - 1])
        if bits < 2:
            return
        second = v >> (bits - 2) & 1
        self.learned(second, model.second[bits - 1])
        if bits < 3:
            return
        self.learned(v >> (bits - 3) & 1, model.third[bits - 1][second])
        for i in range(bits - 4, -1, -1):
            self.put(v >> i & 1, _EVEN)

    def finish(self) -> bytes:
        """The fewest bytes that name the interval; what follows them reads as zeros."""
        if self.low == 0:
            return bytes(self.out)
        for kept in range(1, 5):
            unit = (1 << (32 - 8 * kept)) - 1
            point = (self.low + unit) & ~unit
            if point <= self.high:
                self.out += point.to_bytes(4, "big")[:kept]
                break
        return bytes(self.out)


class _Reader(_Interval):
    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        self.at = 4
        self.value = int.from_bytes(data[:4].ljust(4, b"\0"), "big")

    def get(self, one: int) -> int:
        middle = self.middle(one)
        bit = 1 if self.value <= middle else 0
        self.narrow(bit, middle)
        while self.settled():
            self.shift()
            following = self.data[self.at] if self.at < len(self.data) else 0
            self.value = (self.value << 8 | following) & _TOP
            self.at += 1
        return bit

    def learned(self, chance: _Chance) -> int:
        bit = self.get(chance.one)
        chance.learn(bit)
        return bit

    def integer(self, model: _IntegerModel) -> int:
        bits = 1
        while bits < _LONGEST and self.learned(model.more[bits - 1]):
            bits += 1
        v = 1
        if bits < 2:
            return v
        second = self.learned(model.second[bits - 1])
        v = v << 1 | second
        if bits < 3:
            return v
        v = v << 1 | self.learned(model.third[bits - 1][second])
        for _ in range(bits - 3):
            v = v << 1 | self.get(_EVEN)
        return v


def encode(codes: Tensor) -> bytes:
    """The bytes of int32 codes, which `decode` reads with their number of non-zeros.

    >>> codes = torch.tensor([0, 0, 3, -1, 0], dtype=torch.int32)
    >>> decode(encode(codes), 2, 5).tolist()
    [0, 0, 3, -1, 0]
    """
    positions = torch.nonzero(codes).flatten().tolist()
    values = codes[codes != 0].tolist()
    writer = _Writer()
    gap, size = _IntegerModel(), _IntegerModel()
    negative = [_Chance() for _ in range(3)]
    before, at = 0, 0
    for position, code in zip(positions, values, strict=True):
        writer.integer(gap, position - at + 1)
        writer.learned(int(code < 0), negative[before])
        before = 2 if code < 0 else 1
        writer.integer(size, abs(code))
        at = position + 1
    return writer.finish()


def decode(data: bytes, nonzero: int, count: int) -> Tensor:
    """The `count` codes of which `nonzero` are not 0."""
    reader = _Reader(data)
    gap, size = _IntegerModel(), _IntegerModel()
    negative = [_Chance() for _ in range(3)]
    before, at = 0, 0
    positions, values = [], []
    for _ in range(nonzero):
        at += reader.integer(gap) - 1
        sign = reader.learned(negative[before]) if at < count else 0
        magnitude = reader.integer(size) if at < count else 0
        if at >= count or magnitude > _LARGEST_CODE:
            raise CorruptStreamError(f"payload has a run of {count} codes with one outside it")
        before = 2 if sign else 1
        positions.append(at)
        values.append(-magnitude if sign else magnitude)
        at += 1
    codes = torch.zeros(count, dtype=torch.int32)
    codes[torch.tensor(positions, dtype=torch.int64)] = torch.tensor(values, dtype=torch.int32)
    return codes
