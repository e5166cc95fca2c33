"""Flat arrays in a file: large ones in parts of their own, small ones together.

A blob is what a tensor's rule leaves to be kept: whole numbers (*codes*), or values of any
dtype, exact or within a bound. Each part of a large blob is a stream of docs/format.md with
at most `PART` values, so that neither writing nor reading needs memory for more than one. A
stream has some 300 bytes beside its codes; blobs of few values therefore share one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from encke.bound import Absolute, Bound, Lossless
from encke.codec import Packed, compress
from encke.codec.stream import DTYPE_IDS
from encke.errors import CorruptStreamError, UnsupportedError
from encke.ops import quantiser
from encke.store.container import Part, PartReader, PartWriter, place_of
from encke.store.tree import dtype_name, dtype_of

PART = 1 << 20
#: Blobs up to this size share streams.
SMALL = 1 << 16
#: Codes of fewer values have no stream for themselves.
FEW = 1 << 10
#: Codes beyond this magnitude would leave the first tier of the quantiser, whose step is 1.
LARGEST_CODE = 4000


def _unit_error() -> float:
    """The bound for which the step of the `entropy` codec is 1, so that it keeps codes."""
    low = 0.5
    while quantiser.linear(low, torch.float32).step0 < 1.0:
        low *= 1.0 + 2.0**-26
    return low


UNIT = Absolute(_unit_error())


class BlobWriter:
    """Writes blobs and remembers where they lie."""

    def __init__(self, parts: PartWriter) -> None:
        self._parts = parts
        self.entries: list[dict[str, Any]] = []
        self._waiting: dict[str, list[tuple[dict[str, Any], Tensor]]] = {}

    def codes(self, chunks: Iterable[Tensor], count: int) -> int:
        """Whole numbers up to ±`LARGEST_CODE`, in float32."""
        if count <= SMALL:
            joined = _joined(chunks, torch.float32)
            size = float(joined.abs().mean()) if count else 0.0
            kind = f"codes {max(-14, math.frexp(size)[1])}"
            return self._together(kind, joined)
        return self._alone(chunks, UNIT, "entropy", torch.float32)

    def values(
        self, chunks: Iterable[Tensor], count: int, dtype: torch.dtype, bound: Bound
    ) -> int:
        """Values of `dtype` within `bound`, which must not depend on the values."""
        exact = isinstance(bound, Lossless) or not dtype.is_floating_point
        if exact and count <= SMALL:
            return self._together(f"exact {dtype_name(dtype)}", _joined(chunks, dtype))
        codec = "lossless" if exact else "entropy"
        return self._alone(chunks, Lossless() if exact else bound, codec, dtype)

    def finish(self) -> list[dict[str, Any]]:
        """Write what waits; the entries of the index."""
        self._merge()
        for kind in list(self._waiting):
            self._flush(kind)
        return self.entries

    def _merge(self) -> None:
        """Put codes of few values together with those of a neighbouring octave."""
        kinds = [kind for kind in self._waiting if kind.startswith("codes")]
        kinds.sort(key=lambda kind: int(kind.split()[1]))
        pairs = list(itertools.pairwise(kinds))
        for small, other in [*pairs, *(pair[::-1] for pair in pairs[-1:])]:
            if small not in self._waiting or other not in self._waiting:
                continue
            if sum(x.numel() for _, x in self._waiting[small]) < FEW:
                self._waiting[other] = [*self._waiting.pop(small), *self._waiting[other]]

    def _alone(
        self, chunks: Iterable[Tensor], bound: Bound, codec: str, dtype: torch.dtype
    ) -> int:
        places, count = [], 0
        for chunk in chunks:
            packed = compress(chunk, bound, codec=codec)
            places.append(list(self._parts.put([packed.to_bytes(checksum=False)])))
            count += chunk.numel()
        return self._entry({"n": count, "dtype": dtype_name(dtype), "parts": places})

    def _together(self, kind: str, values: Tensor) -> int:
        entry: dict[str, Any] = {"n": values.numel(), "dtype": dtype_name(values.dtype)}
        waiting = self._waiting.setdefault(kind, [])
        waiting.append((entry, values))
        number = self._entry(entry)
        if sum(values.numel() for _, values in waiting) >= PART - SMALL:
            self._flush(kind)
        return number

    def _flush(self, kind: str) -> None:
        waiting = self._waiting.pop(kind)
        joined = torch.cat([values for _, values in waiting])
        codes = kind.startswith("codes")
        bound, codec = (UNIT, "entropy") if codes else (Lossless(), "lossless")
        whole = self._alone([joined], bound, codec, joined.dtype)
        at = 0
        for entry, values in waiting:
            entry |= {"of": whole, "at": at}
            at += values.numel()

    def _entry(self, entry: dict[str, Any]) -> int:
        self.entries.append(entry)
        return len(self.entries) - 1


def _joined(chunks: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
    found = [chunk.reshape(-1) for chunk in chunks]
    return torch.cat(found) if found else torch.empty(0, dtype=dtype)


def chunks_of(x: Tensor, *, dtype: torch.dtype | None = None) -> Iterator[Tensor]:
    """The values of `x` in order, on the host, at most `PART` at a time; never a full copy."""
    if x.is_contiguous():
        flat = x.view(-1)
        pieces: Iterable[Tensor] = (flat[i : i + PART] for i in range(0, flat.numel(), PART))
    elif x.numel() <= PART:
        pieces = [x.reshape(-1)] if x.numel() else []
    else:
        pieces = itertools.chain.from_iterable(chunks_of(row) for row in x)
    for piece in pieces:
        moved = piece.to("cpu", dtype) if dtype is not None else piece.to("cpu")
        yield moved


def joined(chunks: Iterable[Tensor]) -> Iterator[Tensor]:
    """Chunks of few values together, so that each part has many."""
    waiting: list[Tensor] = []
    count = 0
    for chunk in chunks:
        if count + chunk.numel() > PART and waiting:
            yield torch.cat(waiting)
            waiting, count = [], 0
        if chunk.numel() > PART:
            yield from chunks_of(chunk)
            continue
        waiting.append(chunk)
        count += chunk.numel()
    if waiting:
        yield torch.cat(waiting)


class BlobReader:
    """Reads blobs; a bundle is decoded once and kept while its members are asked for."""

    def __init__(self, parts: PartReader) -> None:
        self._parts = parts
        entries = parts.index.get("blobs")
        if not isinstance(entries, list):
            raise parts.corrupt("has no list of blobs")
        self._entries = [self._checked(entry) for entry in entries]
        parts.check_places(p for e in self._entries for p in e.get("parts", ()))
        self._bundles: dict[int, Tensor] = {}

    def _checked(self, entry: Any) -> dict[str, Any]:
        if not isinstance(entry, dict) or not _is_count(entry.get("n")):
            raise self._parts.corrupt("has a blob without a size")
        found: dict[str, Any] = {"n": entry["n"], "dtype": dtype_of(entry.get("dtype"))}
        if found["dtype"] not in DTYPE_IDS:
            raise self._parts.corrupt(f"has a blob of {found['dtype']}")
        if "of" in entry:
            if not _is_count(entry["of"]) or not _is_count(entry.get("at")):
                raise self._parts.corrupt("has a blob in no bundle")
            return found | {"of": entry["of"], "at": entry["at"]}
        places = entry.get("parts")
        if not isinstance(places, list):
            raise self._parts.corrupt("has a blob without parts")
        return found | {"parts": [place_of(place, end=self._parts.end) for place in places]}

    def places(self, number: object) -> list[Part]:
        """The parts of the file that a blob depends on."""
        entry = self._entry(number)
        places: list[Part] = self._entry(entry["of"]).get("parts", []) if "of" in entry else []
        return places or entry.get("parts", [])

    def nbytes(self, number: object) -> float:
        """Bytes of the file that a blob takes; its share of a stream with others in it."""
        entry = self._entry(number)
        total = sum(place.length for place in self.places(number))
        if "of" not in entry:
            return float(total)
        return float(total * entry["n"] / max(1, self._entry(entry["of"])["n"]))

    def dtype(self, number: object) -> torch.dtype:
        """The dtype of a blob."""
        dtype: torch.dtype = self._entry(number)["dtype"]
        return dtype

    def read(self, number: object, count: int, dtype: torch.dtype) -> Tensor:
        """The `count` values of a blob, flat."""
        entry = self._entry(number)
        if (entry["n"], entry["dtype"]) != (count, dtype):
            raise self._parts.corrupt(
                f"has {entry['n']} values of {entry['dtype']} where {count} of {dtype} belong"
            )
        if "of" not in entry:
            return self._decoded(entry)
        whole = self._bundle(entry["of"])
        if whole.dtype != dtype or entry["at"] + count > whole.numel():
            raise self._parts.corrupt("has a blob that reaches out of its bundle")
        return whole[entry["at"] : entry["at"] + count].clone()

    def _bundle(self, number: int) -> Tensor:
        entry = self._entry(number)
        if "parts" not in entry or entry["n"] > PART + SMALL:
            raise self._parts.corrupt("has a bundle that is none")
        if number not in self._bundles:
            self._bundles[number] = self._decoded(entry)
        return self._bundles[number]

    def _decoded(self, entry: dict[str, Any]) -> Tensor:
        if entry["n"] > len(entry["parts"]) * (PART + SMALL):
            raise self._parts.corrupt("has a blob with more values than its parts can hold")
        out = torch.empty(entry["n"], dtype=entry["dtype"])
        at = 0
        for place in entry["parts"]:
            part = self._packed(place)
            count = math.prod(part.shape)
            if part.dtype != entry["dtype"] or at + count > entry["n"] or len(part.shape) != 1:
                raise self._parts.corrupt(f"has another part than expected at {place.offset}")
            part.decompress(out=out[at : at + count])
            at += count
        if at != entry["n"]:
            raise self._parts.corrupt("has a blob whose parts do not add up")
        return out

    def _packed(self, place: Part) -> Packed:
        try:
            return Packed.from_bytes(self._parts.part(place))
        except CorruptStreamError as error:
            if str(self._parts.path) in str(error):
                raise
            raise self._parts.corrupt(f"at {place.offset}: {error}") from None

    def _entry(self, number: object) -> dict[str, Any]:
        if not isinstance(number, int) or not 0 <= number < len(self._entries):
            raise self._parts.corrupt(f"refers to blob {number!r}")
        return self._entries[number]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 59


def stored_dtype(x: Tensor) -> tuple[Tensor, torch.dtype]:
    """`x` as a dtype that streams have: bits of the same size stand in for the others."""
    if x.dtype in DTYPE_IDS:
        return x, x.dtype
    if x.is_quantized or x.dtype.itemsize > 16:
        raise UnsupportedError(f"dtype is {x.dtype}, which a file of the store cannot hold")
    stand_in = STAND_INS[x.dtype.itemsize]
    if x.dtype.is_complex:
        x = x.resolve_conj()
    flat = x.resolve_neg().contiguous().reshape(-1)
    return flat.view(stand_in) if flat.numel() else flat.new_empty(0, dtype=stand_in), stand_in


#: Dtypes that keep the bits of others of that many bytes.
STAND_INS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
