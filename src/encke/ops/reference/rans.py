"""The entropy stage (docs/format.md, section 6): codes to bytes and back."""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.quantiser import PLAIN
from encke.ops.reference import digits, tables
from encke.ops.reference.choice import choose, symbols_of
from encke.ops.reference.coder import LOWEST, Settings, decode_rows, encode_rows
from encke.ops.reference.digits import LANES, VERBATIM, Alphabet
from encke.ops.reference.tables import Frequencies, Lookup

CHUNK = 65536
CODED, CODED_TIER1, MODE_VERBATIM, MODE_ZERO = 0, 1, 2, 3

#: Chunks that run side by side: bounds what the work tensors take.
_BATCH = 64


class Chunk(NamedTuple):
    """A decoded chunk: codes in modes 0 and 1, and the bytes of its verbatim values."""

    mode: int
    size: int
    codes: Tensor | None
    rest: Tensor


class Coded(NamedTuple):
    """The stage's parameter bytes, its tables, and each chunk from its words on."""

    own: bytes
    tables: bytes
    bodies: dict[int, Tensor]


def encode_chunks(
    chunks: dict[int, Tensor], *, kind: int, seed: int, marked: bool | None = None
) -> Coded:
    """Each chunk (page → int32 codes) after its mode and up to its exceptions.

    `marked` says whether zeros may have a digit of their own; unless given, in every kind
    but plain.
    """
    marked = kind != PLAIN if marked is None else marked
    settings, frequencies = choose(chunks, kind=kind, seed=seed, marked=marked)
    bodies: dict[int, Tensor] = {}
    for pages in _batches({page: codes.numel() for page, codes in chunks.items()}):
        parts = [
            symbols_of(chunks[page], settings.alphabet, kind=kind, seed=seed, page=page)
            for page in pages
        ]
        symbols, raw_bits, raw = (torch.stack([p[i] for p in parts]) for i in range(3))
        lookup = Lookup.of(frequencies, symbols.device)
        states, words, taken = encode_rows(symbols, raw_bits, raw, settings, lookup)
        for at, page in enumerate(pages):
            exceptions = parts[at][3]
            own_words = words[at][taken[at]]
            bodies[page] = torch.cat(
                [
                    _bytes_of([own_words.numel(), exceptions.numel()], states.device),
                    states[at].flatten().to(torch.int32).view(torch.uint8),
                    own_words.to(torch.int16).view(torch.uint8),
                    exceptions.to(torch.int32).view(torch.uint8),
                ]
            )
    return Coded(settings.to_bytes(), tables.write(frequencies), bodies)


def split(x: Tensor) -> dict[int, Tensor]:
    """The chunks of a tensor by their page."""
    pages = range(-(-x.numel() // CHUNK))
    return {page: x[page * CHUNK : (page + 1) * CHUNK] for page in pages}


def join(own_tables: bytes, chunks: list[Tensor], device: torch.device) -> Tensor:
    """Tables, chunk lengths and chunks, as they follow the parameters."""
    lengths = _bytes_of([c.numel() for c in chunks], device)
    head = torch.tensor(list(own_tables), dtype=torch.uint8, device=device)
    return torch.cat([head, lengths, *chunks])


def mode_bytes(mode: int, device: torch.device) -> Tensor:
    """The four bytes that start a chunk."""
    return torch.tensor([mode, 0, 0, 0], dtype=torch.uint8, device=device)


def encode_codes(codes: Tensor, *, kind: int, seed: int) -> tuple[bytes, Tensor]:
    """Parameter bytes 1 to 7, and tables, lengths and chunks, of int32 codes alone.

    `digits.VERBATIM` stands for a value that its codec keeps itself, `digits.ZERO` for an
    exact zero. A chunk whose codes are all 0 takes four bytes.
    """
    pages = split(codes)
    coded = encode_chunks(
        {page: c for page, c in pages.items() if bool((c != 0).any())}, kind=kind, seed=seed
    )
    device = codes.device
    chunks = [
        torch.cat([mode_bytes(CODED, device), coded.bodies[page]])
        if page in coded.bodies
        else mode_bytes(MODE_ZERO, device)
        for page in pages
    ]
    return coded.own, join(coded.tables if pages else b"", chunks, device)


def decode_codes(own: bytes, body: Tensor, count: int, *, kind: int, seed: int) -> Tensor:
    """The int32 codes that `encode_codes` was given; `CorruptStreamError` if it was not."""
    if count == 0:
        if body.numel():
            raise CorruptStreamError(f"payload has {body.numel()} bytes for no codes")
        return torch.empty(0, dtype=torch.int32, device=body.device)
    chunks = decode_chunks(own, body, count, kind=kind, seed=seed, verbatim_bytes=0)
    return torch.cat(
        [
            torch.zeros(c.size, dtype=torch.int32, device=body.device)
            if c.codes is None
            else c.codes
            for c in chunks
        ]
    )


def decode_chunks(
    own: bytes,
    body: Tensor,
    count: int,
    *,
    kind: int,
    seed: int,
    verbatim_bytes: int,
    marked: bool | None = None,
) -> list[Chunk]:
    """The chunks of tables, lengths and chunks, each checked for its length.

    `verbatim_bytes` is what a verbatim value takes; 0 if the stage holds codes only.
    `marked` as in `encode_chunks`.
    """
    marked = kind != PLAIN if marked is None else marked
    settings = Settings.from_bytes(own, kind=kind, marked=marked)
    head = bytes(body[: settings.tables * tables.LONGEST].tolist())
    frequencies, used = tables.read(
        head, settings.tables, precision=settings.precision, alphabet=settings.alphabet
    )
    number = -(-count // CHUNK)
    first = used + 4 * number
    if body.numel() < first + 4 * number:
        raise CorruptStreamError(
            f"payload has {body.numel() - used} bytes after its tables, too few for the "
            f"{number} chunks of {count} values"
        )
    lengths = _integers(body[used:first], torch.int32).tolist()
    if sum(lengths) != body.numel() - first:
        raise CorruptStreamError(
            f"payload's chunks take {sum(lengths)} bytes, {body.numel() - first} are there"
        )
    sealed: list[_Sealed] = []
    for page, length in enumerate(lengths):
        data = body[first : first + length]
        first += length
        size = min(CHUNK, count - page * CHUNK)
        sealed.append(_open(data, size, settings, verbatim_bytes))
    return _decode_sealed(sealed, settings, frequencies, kind=kind, seed=seed)


class _Sealed(NamedTuple):
    """A chunk cut into its parts; the tensors are empty outside modes 0 and 1."""

    mode: int
    size: int
    states: Tensor
    words: Tensor
    exceptions: Tensor
    rest: Tensor


def _open(data: Tensor, count: int, settings: Settings, verbatim_bytes: int) -> _Sealed:
    if data.numel() < 4:
        raise CorruptStreamError(f"payload has a chunk of {data.numel()} bytes, at least 4")
    mode, *zeros = data[:4].tolist()
    if mode > MODE_ZERO or any(zeros) or (mode == MODE_VERBATIM and not verbatim_bytes):
        raise CorruptStreamError(f"payload has a chunk of mode {mode}, {zeros}")
    if mode >= MODE_VERBATIM:
        wanted = 4 + (count * verbatim_bytes if mode == MODE_VERBATIM else 0)
        if data.numel() != wanted:
            raise CorruptStreamError(
                f"payload has a chunk of mode {mode} and {data.numel()} bytes, not {wanted}"
            )
        none = torch.empty(0, dtype=torch.int64, device=data.device)
        return _Sealed(mode, count, none, none, none, data[4:])
    states_at = 12
    words_at = states_at + 4 * LANES * (1 << settings.log_rows)
    if data.numel() < words_at:
        raise CorruptStreamError(f"payload has a chunk of {data.numel()} bytes, too short")
    number_words, number_exceptions = _integers(data[4:12], torch.int32).tolist()
    exceptions_at = words_at + 2 * number_words
    rest_at = exceptions_at + 4 * number_exceptions
    if number_exceptions > count or rest_at > data.numel():
        raise CorruptStreamError(
            f"payload has a chunk of {data.numel()} bytes with {number_words} words and "
            f"{number_exceptions} exceptions, which do not fit"
        )
    states = _integers(data[states_at:words_at], torch.int32)
    exceptions = _integers(data[exceptions_at:rest_at], torch.int32)
    verbatim = int((digits.unzigzag(exceptions) == VERBATIM).sum())
    if bool(((states < LOWEST) | (states >= LOWEST << 16)).any()):
        raise CorruptStreamError("payload has a coder state outside [2^15, 2^31)")
    if data.numel() != rest_at + verbatim * verbatim_bytes:
        raise CorruptStreamError(
            f"payload has a chunk of {data.numel()} bytes that needs "
            f"{rest_at + verbatim * verbatim_bytes}"
        )
    words = _integers(data[words_at:exceptions_at], torch.int16)
    return _Sealed(mode, count, states, words, exceptions, data[rest_at:])


def _decode_sealed(
    sealed: list[_Sealed], settings: Settings, frequencies: Frequencies, *, kind: int, seed: int
) -> list[Chunk]:
    out = [Chunk(s.mode, s.size, None, s.rest) for s in sealed]
    coded = {page: s.size for page, s in enumerate(sealed) if s.mode <= CODED_TIER1}
    for pages in _batches(coded):
        batch = [sealed[page] for page in pages]
        device = batch[0].rest.device
        rows = digits.rows_of(batch[0].size, settings.alphabet)
        lookup = Lookup.of(frequencies, device)
        symbols, raw = decode_rows(
            torch.stack([s.states for s in batch]),
            [s.words for s in batch],
            rows,
            settings,
            lookup,
        )
        for at, page in enumerate(pages):
            out[page] = _codes_of(
                symbols[at], raw[at], batch[at], settings.alphabet, kind, seed, page
            )
    return out


def _codes_of(
    symbols: Tensor,
    raw: Tensor,
    sealed: _Sealed,
    alphabet: Alphabet,
    kind: int,
    seed: int,
    page: int,
) -> Chunk:
    place = digits.order(
        sealed.size, alphabet, kind=kind, seed=seed, page=page, device=symbols.device
    )
    exists = place < sealed.size
    digit = digits.from_symbols(symbols, alphabet)
    codes = digits.from_digits(digit, raw.unsqueeze(-1), alphabet)
    escaped = exists & (digit == alphabet.escape)
    if int(escaped.sum()) != sealed.exceptions.numel():
        raise CorruptStreamError(
            f"payload has a chunk with {sealed.exceptions.numel()} exceptions "
            f"and {int(escaped.sum())} escapes"
        )
    codes[escaped] = digits.unzigzag(sealed.exceptions)
    out = torch.empty(sealed.size, dtype=torch.int32, device=symbols.device)
    out[place[exists]] = codes[exists].to(torch.int32)
    return Chunk(sealed.mode, sealed.size, out, sealed.rest)


def _batches(counts: dict[int, int]) -> list[list[int]]:
    """Pages of equal length, at most `_BATCH` together."""
    by_count: dict[int, list[int]] = {}
    for page, count in counts.items():
        by_count.setdefault(count, []).append(page)
    return [
        pages[at : at + _BATCH]
        for pages in by_count.values()
        for at in range(0, len(pages), _BATCH)
    ]


def _integers(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Unsigned little-endian integers as int64."""
    mask = (1 << 8 * dtype.itemsize) - 1
    return data.clone().view(dtype).to(torch.int64) & mask


def _bytes_of(numbers: list[int], device: torch.device) -> Tensor:
    return torch.tensor(list(struct.pack(f"<{len(numbers)}I", *numbers))).to(
        device=device, dtype=torch.uint8
    )
