"""The file of the store: parts one after the other, then an index (docs/format.md).

A writer needs to know nothing in advance, so tensors go to the disk one by one. The index
holds where each part lies and its checksum; a footer at the very end holds the index's own.
Every byte of a file is covered by one of these checks.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from encke.codec.frames import bytes_of, frame_of
from encke.errors import CorruptStreamError

MAGIC = b"ENCS"
VERSION = 1
_HEAD = struct.Struct("<4sB11s")
_FOOTER = struct.Struct("<QQQI4sI")  # index: offset, bytes, bytes unpacked, CRC; magic; own CRC
_LEVEL = 9
#: A frame that claims to grow more than this is refused before it is unpacked.
_MOST_GROWTH = 4000


class Part(NamedTuple):
    """Where a part lies, and the CRC-32 of its bytes."""

    offset: int
    length: int
    crc: int


class PartWriter:
    """Appends parts to an open file, then closes it with an index."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._file.write(_HEAD.pack(MAGIC, VERSION, bytes(11)))
        self.size = _HEAD.size

    def put(self, pieces: Iterable[bytes | memoryview]) -> Part:
        """The pieces, joined, as one part."""
        start, crc = self.size, 0
        for piece in pieces:
            self._file.write(piece)
            crc = zlib.crc32(piece, crc)
            self.size += len(piece)
        return Part(start, self.size - start, crc)

    def finish(self, index: dict[str, Any]) -> None:
        """Write the index and the footer; nothing may follow."""
        text = json.dumps(index, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        raw = text.encode("utf-8", "surrogatepass")
        frame = frame_of(raw, level=_LEVEL)
        self._file.write(frame)
        footer = _FOOTER.pack(self.size, len(frame), len(raw), zlib.crc32(frame), MAGIC, 0)
        footer = footer[:-4]
        self._file.write(footer + struct.pack("<I", zlib.crc32(footer)))
        self.size += len(frame) + _FOOTER.size


class PartReader:
    """A file of the store, opened: its index, checked, and its parts on demand.

    Whatever the bytes, this returns what was written or raises `CorruptStreamError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self.index = self._read_index()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _read_index(self) -> dict[str, Any]:
        if self.size < _HEAD.size + _FOOTER.size:
            raise self.corrupt(f"has {self.size} bytes, which is too short for a stored state")
        magic, version, zeros = _HEAD.unpack(self._bytes(0, _HEAD.size))
        if magic != MAGIC:
            raise self.corrupt(f"starts with {magic!r}, a stored state with {MAGIC!r}")
        if version != VERSION:
            raise self.corrupt(
                f"has format version {version}, this Encke reads {VERSION}; update Encke"
            )
        footer = self._bytes(self.size - _FOOTER.size, _FOOTER.size)
        offset, length, unpacked, crc, end, own = _FOOTER.unpack(footer)
        if zlib.crc32(footer[:-4]) != own or end != MAGIC or any(zeros):
            raise self.corrupt("has a damaged end: it was cut off or changed")
        if offset < _HEAD.size or offset + length + _FOOTER.size != self.size:
            raise self.corrupt("places its index outside of itself")
        frame = self._bytes(offset, length)
        if zlib.crc32(frame) != crc:
            raise self.corrupt("has an index that fails its checksum")
        if unpacked > _MOST_GROWTH * length:
            raise self.corrupt(f"has an index of {length} bytes that claims {unpacked}")
        self.end = offset
        try:
            index = json.loads(bytes_of(frame, unpacked).decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise self.corrupt(f"has an index that is not JSON: {error}") from None
        if not isinstance(index, dict):
            raise self.corrupt("has an index that is no dictionary")
        return index

    def part(self, place: Part) -> memoryview:
        """The bytes of a part, checked."""
        data = self._bytes(place.offset, place.length)
        if zlib.crc32(data) != place.crc:
            raise self.corrupt(f"has damaged bytes at {place.offset}")
        return memoryview(data)

    def check_places(self, places: Iterable[Part]) -> None:
        """Raise unless the parts lie one after the other and fill the file up to the index."""
        at = _HEAD.size
        for place in sorted(places):
            if place.offset != at:
                raise self.corrupt(f"has a part at {place.offset}, expected at {at}")
            at += place.length
        if at != self.end:
            raise self.corrupt(f"has bytes that belong to no part at {at}")

    def corrupt(self, what: str) -> CorruptStreamError:
        return CorruptStreamError(f"{self.path} {what}")

    def _bytes(self, offset: int, length: int) -> bytes:
        data = os.pread(self._file.fileno(), length, offset)
        while len(data) < length:  # a single read gives at most 2 GiB
            more = os.pread(self._file.fileno(), length - len(data), offset + len(data))
            if not more:
                raise self.corrupt("ends before it should")
            data += more
        return data


def place_of(value: object, *, end: int) -> Part:
    """A part as the index has it, checked against the length of the file."""
    if (
        not isinstance(value, list)
        or len(value) != 3
        or not all(type(item) is int and item >= 0 for item in value)
        or value[0] + value[1] > end
        or value[2] >= 1 << 32
    ):
        raise CorruptStreamError(f"the index has a part at {value!r}, which cannot be")
    return Part(*value)


def is_store(path: Path) -> bool:
    """Whether a file starts as a stored state does."""
    with path.open("rb") as file:
        return file.read(4) == MAGIC
