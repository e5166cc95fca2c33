"""How the reference encoder fills in what the format leaves free (section 6)."""

from __future__ import annotations

import torch
from torch import Tensor

from encke.ops.quantiser import DITHER
from encke.ops.reference import digits, tables
from encke.ops.reference.coder import Settings
from encke.ops.reference.digits import LANES, VERBATIM, ZERO, Alphabet
from encke.ops.reference.tables import Frequencies

PRECISION = 12

#: From how many codes on eight tables, and more than one row of lanes, pay.
_MANY_TABLES = 16384
_MANY_ROWS = 4096
#: How much larger a stream may be for having fewer symbols.
_NEARLY = 1.02


def symbols_of(
    codes: Tensor, alphabet: Alphabet, *, kind: int, seed: int, page: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Symbols, raw bits and raw values [rows, 8] of a chunk, and its exceptions."""
    place = digits.order(
        codes.numel(), alphabet, kind=kind, seed=seed, page=page, device=codes.device
    )
    exists = place < codes.numel()
    arranged = codes[place.clamp(max=codes.numel() - 1)]
    digit, raw_bits, raw = digits.to_digits(arranged, alphabet)
    escaped = exists & (digit == alphabet.escape)
    digit = torch.where(exists, digit, 0)
    # Only digits of 8 bits have raw bits, and then one is a symbol.
    raw_bits = torch.where(exists, raw_bits, 0)[..., 0]
    raw = torch.where(exists, raw, 0)[..., 0]
    exceptions = digits.zigzag(arranged[escaped])
    return digits.to_symbols(digit, alphabet), raw_bits, raw, exceptions


def count_symbols(symbols: Tensor, number: int) -> Tensor:
    """[tables, 256] how often each symbol occurs, by the table of its lane."""
    lane = torch.arange(LANES, device=symbols.device) * 256
    counts = torch.bincount((symbols + lane).flatten(), minlength=LANES * 256)
    counts = counts.view(LANES, 256)
    return counts if number == LANES else counts.sum(0, keepdim=True)


def choose(
    chunks: dict[int, Tensor], *, kind: int, seed: int, marked: bool
) -> tuple[Settings, Frequencies]:
    """The settings with the fewest symbols among those of nearly the smallest size.

    Small digits put several codes into a symbol, which a decoder is quicker with; what
    they cost is larger tables and more exceptions.
    """
    count = sum(codes.numel() for codes in chunks.values())
    number = LANES if kind == DITHER and count >= _MANY_TABLES else 1
    if count == 0:
        return Settings(Alphabet(8), 0, PRECISION, number), [{0: 1 << PRECISION}]
    everything = torch.cat(list(chunks.values()))
    zero = marked and bool((everything == ZERO).any())
    candidates: list[tuple[float, Settings, Frequencies]] = []
    for bits in (2, 4, 8):
        alphabet = Alphabet(bits, 0, zero)
        if bits != 8:
            alphabet = alphabet._replace(base=_fullest_window(everything, alphabet.window))
        log_rows = bits.bit_length() - 2 if count >= _MANY_ROWS else 0
        settings = Settings(alphabet, log_rows, PRECISION, number)
        size, frequencies = _estimate(chunks, settings, kind=kind, seed=seed)
        candidates.append((size, settings, frequencies))
    enough = _NEARLY * min(size for size, _, _ in candidates)
    _, settings, frequencies = next(c for c in candidates if c[0] <= enough)
    return settings, frequencies


def _estimate(
    chunks: dict[int, Tensor], settings: Settings, *, kind: int, seed: int
) -> tuple[float, Frequencies]:
    """Bits that the chunks will take, and the tables they will take them with."""
    bits = 0.0
    counts = torch.zeros(settings.tables, 256, dtype=torch.int64)
    for page, codes in chunks.items():
        symbols, raw_bits, _, exceptions = symbols_of(
            codes, settings.alphabet, kind=kind, seed=seed, page=page
        )
        counts += count_symbols(symbols, settings.tables).cpu()
        bits += int(raw_bits.sum()) + 32 * exceptions.numel()
    frequencies = [tables.normalise(row, settings.precision) for row in counts]
    for row, table in zip(counts, frequencies, strict=True):
        probability = torch.zeros(256, dtype=torch.float64)
        probability[list(table)] = torch.tensor(list(table.values()), dtype=torch.float64)
        probability /= 1 << settings.precision
        seen = row > 0
        bits -= float((row[seen] * probability[seen].log2()).sum())
    return bits + 8 * len(tables.write(frequencies)), frequencies


def _fullest_window(codes: Tensor, width: int) -> int:
    """The base from which `width` consecutive codes hold the most values."""
    plain = codes[(codes != VERBATIM) & (codes != ZERO)]
    plain = plain[(plain >= -(2**15)) & (plain < 2**15)]
    if plain.numel() == 0:
        return 0
    code, number = torch.unique(plain, return_counts=True)
    below = torch.cat([number.new_zeros(1), number.cumsum(0)])
    inside = below[torch.searchsorted(code, code + width)] - below[:-1]
    return int(code[int(inside.argmax())])
