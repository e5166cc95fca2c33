"""The adaptive coder of bits (docs/format.md, section 8), a bit at a time."""

from __future__ import annotations

_TOP = 0xFFFF_FFFF
EVEN = 32768
_LONGEST = 33


class Chance:
    """The probability that a bit is 1, out of 65536: moves fast at first, then slower."""

    __slots__ = ("one", "seen")

    def __init__(self) -> None:
        self.one = EVEN
        self.seen = 0

    def learn(self, bit: int) -> None:
        target = 65535 if bit else 0
        moved = self.one + (((target - self.one) * (65536 // (2 * self.seen + 3))) >> 15)
        self.one = min(max(moved, 32), 65503)
        if self.seen < 60:
            self.seen += 1


class IntegerModel:
    """Chances of a positive integer: its number of bits, then the two below its top."""

    def __init__(self) -> None:
        self.more = [Chance() for _ in range(_LONGEST)]
        self.second = [Chance() for _ in range(_LONGEST)]
        self.third = [(Chance(), Chance()) for _ in range(_LONGEST)]


class Interval:
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


class BitWriter(Interval):
    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()

    def put(self, bit: int, one: int) -> None:
        self.narrow(bit, self.middle(one))
        while self.settled():
            self.out.append(self.high >> 24)
            self.shift()

    def learned(self, bit: int, chance: Chance) -> None:
        self.put(bit, chance.one)
        chance.learn(bit)

    def integer(self, model: IntegerModel, v: int) -> None:
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
            self.put(v >> i & 1, EVEN)

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


class BitReader(Interval):
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

    def learned(self, chance: Chance) -> int:
        bit = self.get(chance.one)
        chance.learn(bit)
        return bit

    def integer(self, model: IntegerModel) -> int:
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
            v = v << 1 | self.get(EVEN)
        return v
