"""Frequency tables of the entropy stage: normalised, written, read, looked up."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.reference.digits import LANES, Alphabet

#: Bytes of the longest table: its number of entries, and 256 of three bytes.
LONGEST = 2 + 256 * 3

Frequencies = list[dict[int, int]]


def normalise(counts: Tensor, precision: int) -> dict[int, int]:
    """Frequencies that add up to 2^precision, at least 1 for every symbol counted.

    >>> normalise(torch.tensor([3, 0, 1]), 8)
    {0: 192, 2: 64}
    """
    total = 1 << precision
    seen = {s: n for s, n in enumerate(counts.tolist()) if n > 0}
    if not seen:
        return {0: total}
    share = sum(seen.values())
    frequencies = {s: max(1, n * total // share) for s, n in seen.items()}
    missing = total - sum(frequencies.values())
    while missing != 0:
        common = max(frequencies, key=lambda s: frequencies[s])
        change = missing if missing > 0 else -min(-missing, frequencies[common] // 2)
        frequencies[common] += change
        missing -= change
    return frequencies


def write(tables: Frequencies) -> bytes:
    """The tables as a payload holds them."""
    out = bytearray()
    for frequencies in tables:
        out += len(frequencies).to_bytes(2, "little")
        previous = -1
        for symbol in sorted(frequencies):
            rest = frequencies[symbol] - 1
            out.append(symbol - previous - 1)
            out += bytes([rest]) if rest < 128 else bytes([rest & 127 | 128, rest >> 7])
            previous = symbol
    return bytes(out)


def read(
    data: bytes, number: int, *, precision: int, alphabet: Alphabet
) -> tuple[Frequencies, int]:
    """The tables at the start of `data`, and how many bytes they take."""
    tables: Frequencies = []
    position = 0
    for _ in range(number):
        frequencies, position = _read_one(data, position, alphabet)
        total = sum(frequencies.values())
        if total != 1 << precision:
            raise CorruptStreamError(
                f"payload has a table of frequencies that add up to {total}, "
                f"not to {1 << precision}"
            )
        tables.append(frequencies)
    return tables, position


def _read_one(data: bytes, position: int, alphabet: Alphabet) -> tuple[dict[int, int], int]:
    def byte() -> int:
        nonlocal position
        if position >= len(data):
            raise CorruptStreamError("payload ends inside its frequency tables")
        position += 1
        return data[position - 1]

    entries = byte() | byte() << 8
    frequencies: dict[int, int] = {}
    symbol = -1
    for _ in range(entries):
        symbol += byte() + 1
        if symbol > 255 or not alphabet.allows(symbol):
            raise CorruptStreamError(f"payload has a table entry for symbol {symbol}")
        low = byte()
        high = byte() if low & 128 else 0
        if high & 128:
            raise CorruptStreamError("payload has a frequency of more than two bytes")
        frequencies[symbol] = (low & 127 | high << 7) + 1
    return frequencies, position


class Lookup(NamedTuple):
    """Tables as tensors, indexed by lane and symbol, or by lane and slot."""

    frequency: Tensor  # [8, 256]
    start: Tensor  # [8, 256], the sum of the frequencies below
    slot_symbol: Tensor  # [8, 2^P]

    @classmethod
    def of(cls, tables: Frequencies, device: torch.device) -> Lookup:
        frequency = torch.zeros(len(tables), 256, dtype=torch.int64)
        for row, frequencies in enumerate(tables):
            for symbol, f in frequencies.items():
                frequency[row, symbol] = f
        start = frequency.cumsum(1) - frequency
        symbols = torch.arange(256)
        slots = torch.stack([torch.repeat_interleave(symbols, f) for f in frequency])
        lanes = LANES if len(tables) == 1 else 1
        return cls(*(t.repeat(lanes, 1).to(device) for t in (frequency, start, slots)))
