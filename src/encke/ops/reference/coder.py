"""The coder of docs/format.md, section 6: interleaved range asymmetric numeral systems.

Chunks of the same length run side by side, and in each the R rows of lanes: which
states take a word never depends on what the words hold.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.quantiser import DITHER
from encke.ops.reference import digits
from encke.ops.reference.digits import LANES, Alphabet
from encke.ops.reference.tables import Lookup

LOWEST = 1 << 15


class Settings(NamedTuple):
    """The stage's seven parameter bytes."""

    alphabet: Alphabet
    log_rows: int
    precision: int
    tables: int

    def to_bytes(self) -> bytes:
        bits, base, zero = self.alphabet
        return struct.pack(
            "<BBBhBB", bits, self.log_rows, self.precision, base, self.tables, int(zero)
        )

    @classmethod
    def from_bytes(cls, own: bytes, *, kind: int, marked: bool) -> Settings:
        bits, log_rows, precision, base, number, flags = struct.unpack("<BBBhBB", own)
        sound = (
            bits in (8, 4, 2)
            and log_rows <= 2
            and 8 <= precision <= 12
            and (number == 1 or (number == 8 and kind == DITHER))
            and (flags == 0 or (flags == 1 and marked))
        )
        if not sound:
            raise CorruptStreamError(
                f"payload has entropy parameters {own.hex()} in kind {kind}, which none can be"
            )
        return cls(Alphabet(bits, base, flags == 1), log_rows, precision, number)


def encode_rows(
    symbols: Tensor, raw_bits: Tensor, raw: Tensor, settings: Settings, lookup: Lookup
) -> tuple[Tensor, Tensor, Tensor]:
    """States [C, R, 8], and words [C, rows, 2, 8] of which only the `taken` exist."""
    chunks, rows, _ = symbols.shape
    together, device = 1 << settings.log_rows, symbols.device
    lane = torch.arange(LANES, device=device)
    frequency, start = lookup.frequency[lane, symbols], lookup.start[lane, symbols]
    symbol_limit, raw_limit = frequency << (31 - settings.precision), 1 << (31 - raw_bits)
    words = torch.zeros(chunks, rows, 2, LANES, dtype=torch.int64, device=device)
    taken = torch.zeros(words.shape, dtype=torch.bool, device=device)
    states = torch.full((chunks, together, LANES), LOWEST, dtype=torch.int64, device=device)
    for first in reversed(range(0, rows, together)):
        here = slice(first, min(first + together, rows))
        x = states[:, : here.stop - here.start]
        if settings.alphabet.bits == 8:
            full = x >= raw_limit[:, here]
            words[:, here, 1], taken[:, here, 1] = x & 0xFFFF, full
            x = torch.where(full, x >> 16, x) << raw_bits[:, here] | raw[:, here]
        full = x >= symbol_limit[:, here]
        words[:, here, 0], taken[:, here, 0] = x & 0xFFFF, full
        x = torch.where(full, x >> 16, x)
        f = frequency[:, here]
        x = (x // f << settings.precision) + x % f + start[:, here]
        states[:, : here.stop - here.start] = x
    return states, words, taken


def decode_rows(
    states: Tensor, words: list[Tensor], rows: int, settings: Settings, lookup: Lookup
) -> tuple[Tensor, Tensor]:
    """Symbols and raw values [C, rows, 8] of the chunks with these states and words.

    `CorruptStreamError` unless every word is used and every state ends as it began.
    """
    chunks, together, device = len(words), 1 << settings.log_rows, states.device
    number = torch.tensor([w.numel() for w in words], device=device)
    position = number.cumsum(0) - number
    end = position + number
    # One word more than there are: whoever reads too far reads it, and is found out.
    flat = torch.cat([*words, number.new_zeros(1)])
    states = states.view(chunks, together, LANES).clone()
    raw_bits_of = digits.raw_bits_of_digit(device)
    lane = torch.arange(LANES, device=device)
    mask, buckets = (1 << settings.precision) - 1, settings.alphabet.bits == 8
    symbols = torch.zeros(chunks, rows, LANES, dtype=torch.int64, device=device)
    raw = torch.zeros_like(symbols)
    for first in range(0, rows, together):
        here = slice(first, min(first + together, rows))
        x = states[:, : here.stop - here.start]
        slot = x & mask
        s = lookup.slot_symbol[lane, slot]
        symbols[:, here] = s
        x = lookup.frequency[lane, s] * (x >> settings.precision) + slot
        x = x - lookup.start[lane, s]
        low = x < LOWEST
        bits = raw_bits_of[s] if buckets else torch.zeros_like(x)
        # A state's size after its word, and so whether it takes another once its raw
        # bits are gone, does not depend on the word: 0 stands for it here.
        low_after = ((torch.where(low, x << 16, x) >> bits) < LOWEST) & (bits > 0)
        takes = torch.stack([low, low_after], dim=2)
        rank = takes.flatten(1).cumsum(1)
        at = (position.view(-1, 1) + rank - 1).view(takes.shape)
        word = flat[at.clamp(min=0, max=flat.numel() - 1)]
        position = position + rank[:, -1]
        x = torch.where(low, x << 16 | word[:, :, 0], x)
        if buckets:
            raw[:, here] = x & ((1 << bits) - 1)
            x = x >> bits
            x = torch.where(low_after, x << 16 | word[:, :, 1], x)
        states[:, : here.stop - here.start] = x
    if not bool((position == end).all()) or not bool((states == LOWEST).all()):
        raise CorruptStreamError("payload has a chunk whose words do not end where it does")
    return symbols, raw
