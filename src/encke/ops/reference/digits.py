"""Codes to digits, digits to symbols, symbols to lanes (docs/format.md, section 6).

Two codes stand for values that have none: `VERBATIM` and `ZERO`. They are the two
whose zigzag is 0xFFFFFFFF and 0xFFFFFFFE, so that the list of exceptions needs no cases.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from encke.ops.quantiser import DITHER
from encke.ops.reference import dither

LANES = 8
VERBATIM = -(2**31)
ZERO = 2**31 - 1

_BUCKETS_END = 2**17
_LARGEST_BUCKET_DIGIT = 238


class Alphabet(NamedTuple):
    """Which digit stands for which code: `bits` is 8, 4 or 2; `zero` puts Z in use."""

    bits: int
    base: int = 0
    zero: bool = False

    @property
    def codes_per_symbol(self) -> int:
        return 8 // self.bits

    @property
    def escape(self) -> int:
        return (1 << self.bits) - 1

    @property
    def zero_digit(self) -> int:
        return self.escape - 1

    @property
    def window(self) -> int:
        """How many consecutive codes have a digit (4 and 2 bits)."""
        return self.escape - int(self.zero)

    def allows(self, symbol: int) -> bool:
        """Whether a symbol may have an entry in a table."""
        if self.bits != 8 or symbol in (255, 254):
            return symbol != 254 or self.bits != 8 or self.zero
        return symbol <= _LARGEST_BUCKET_DIGIT


class Digits(NamedTuple):
    """Digits of codes, the number of raw bits of each, and those bits."""

    digit: Tensor
    raw_bits: Tensor
    raw: Tensor


def to_digits(codes: Tensor, alphabet: Alphabet) -> Digits:
    """The digit of each code, the escape where none stands for it."""
    c = codes.to(torch.int64)
    none = torch.zeros_like(c)
    if alphabet.bits == 8:
        from_base = c - alphabet.base
        a = from_base.abs()
        inside = a < _BUCKETS_END
        a = torch.where(inside, a, 0)
        exponent = torch.frexp(a.to(torch.float64)).exponent.to(torch.int64) - 1
        raw_bits = torch.where(a < 16, none, exponent - 3)
        large = 16 + 8 * (exponent - 4) + ((a >> raw_bits) & 7)
        index = torch.where(a < 16, a, large)
        digit = torch.where(from_base < 0, 2 * index - 1, 2 * index)
        raw = a & ((1 << raw_bits) - 1)
    else:
        digit = c - alphabet.base
        inside = (digit >= 0) & (digit < alphabet.window)
        raw_bits, raw = none, none
    digit = torch.where(inside, digit, alphabet.escape)
    if alphabet.zero:
        digit = torch.where(c == ZERO, alphabet.zero_digit, digit)
    return Digits(digit, raw_bits, raw)


def from_digits(digit: Tensor, raw: Tensor, alphabet: Alphabet) -> Tensor:
    """The codes of digits; 0 in the place of an escape."""
    if alphabet.bits == 8:
        index = (digit + 1) >> 1
        raw_bits = raw_bits_of_digit(digit.device)[digit]
        large = ((8 + ((index - 16) & 7)) << raw_bits) | raw
        a = torch.where(index < 16, index, large)
        c = torch.where((digit & 1).to(torch.bool), -a, a) + alphabet.base
    else:
        c = digit + alphabet.base
    if alphabet.zero:
        c = torch.where(digit == alphabet.zero_digit, ZERO, c)
    return torch.where(digit == alphabet.escape, 0, c)


def raw_bits_of_digit(device: torch.device) -> Tensor:
    """How many raw bits follow each of the 256 digits of 8 bits."""
    digit = torch.arange(256, device=device)
    index = (digit + 1) >> 1
    bits = torch.where(index < 16, 0, ((index - 16) >> 3) + 1)
    return torch.where(digit > _LARGEST_BUCKET_DIGIT, 0, bits)


def to_symbols(digit: Tensor, alphabet: Alphabet) -> Tensor:
    """Digits [..., k] to symbols [...], the first digit in the lowest bits."""
    shift = torch.arange(alphabet.codes_per_symbol, device=digit.device) * alphabet.bits
    return (digit << shift).sum(-1)


def from_symbols(symbol: Tensor, alphabet: Alphabet) -> Tensor:
    """Symbols [...] to digits [..., k]."""
    shift = torch.arange(alphabet.codes_per_symbol, device=symbol.device) * alphabet.bits
    return (symbol.unsqueeze(-1) >> shift) & alphabet.escape


def rows_of(count: int, alphabet: Alphabet) -> int:
    """Symbol rows that `count` codes take."""
    return -(-count // (LANES * alphabet.codes_per_symbol))


def order(
    count: int, alphabet: Alphabet, *, kind: int, seed: int, page: int, device: torch.device
) -> Tensor:
    """[rows, 8 lanes, k]: which position of the chunk stands at each place of the stream.

    Positions from `count` on are those after the end of the chunk.
    """
    k = alphabet.codes_per_symbol
    groups = rows_of(count, alphabet) * k
    lane = torch.arange(LANES, device=device)
    position = lane.expand(groups, LANES)
    if kind == DITHER:
        rotation = dither.rotations(seed, page, groups, device)
        position = (lane - rotation.view(-1, 1)) & 7
    first = torch.arange(groups, device=device).view(-1, 1) * LANES
    return (first + position).view(-1, k, LANES).transpose(1, 2)


def zigzag(codes: Tensor) -> Tensor:
    """Signed 32-bit integers to unsigned ones, as int64."""
    c = codes.to(torch.int64)
    return ((c << 1) ^ (c >> 31)) & 0xFFFF_FFFF


def unzigzag(exceptions: Tensor) -> Tensor:
    """The inverse of `zigzag`."""
    return (exceptions >> 1) ^ -(exceptions & 1)
