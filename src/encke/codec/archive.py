"""Several streams in one file: docs/format.md, "Files with several tensors"."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping

from encke.errors import CorruptStreamError, UnsupportedError

MAGIC = b"ENCA"
VERSION = 1
MAX_NAME_BYTES = 65_535
_HEAD = struct.Struct("<4sB3sIQ")  # magic, version, zeros, members, bytes of the index
_PLACE = struct.Struct("<QQ")  # offset, length
_NAME = struct.Struct("<H")
_CRC = struct.Struct("<I")
_SMALLEST_ENTRY = _NAME.size + 1 + _PLACE.size


def is_archive(blob: bytes | bytearray | memoryview) -> bool:
    """Whether a file starts as an archive does (a bare stream starts otherwise)."""
    return bytes(memoryview(blob)[:4]) == MAGIC


def parts(streams: Mapping[str, bytes]) -> Iterator[bytes]:
    """The archive of `streams` piece by piece, in the mapping's order.

    >>> blob = b"".join(parts({"weight": b"first", "bias": b"second"}))
    >>> {name: bytes(stream) for name, stream in read(blob).items()}
    {'weight': b'first', 'bias': b'second'}
    """
    names = {name: _encoded(name) for name in streams}
    index_bytes = sum(_NAME.size + len(raw) + _PLACE.size for raw in names.values())
    offset = _aligned(_HEAD.size + index_bytes + _CRC.size)
    index = bytearray(_HEAD.pack(MAGIC, VERSION, bytes(3), len(names), index_bytes))
    for name, stream in streams.items():
        index += _NAME.pack(len(names[name])) + names[name] + _PLACE.pack(offset, len(stream))
        offset = _aligned(offset + len(stream))
    index += _CRC.pack(zlib.crc32(index))
    yield bytes(index)
    written = len(index)
    for stream in streams.values():
        yield bytes(_aligned(written) - written)
        yield stream
        written = _aligned(written) + len(stream)


def read(blob: bytes | bytearray | memoryview) -> dict[str, memoryview]:
    """Every member's stream by its name, in the order of the file and without copying.

    Whatever the bytes, this returns or raises `CorruptStreamError`. The streams carry
    their own checksums; the index has one here.
    """
    view = memoryview(blob).cast("B")
    if len(view) < _HEAD.size:
        raise CorruptStreamError(
            f"archive has {len(view)} bytes, its header alone takes {_HEAD.size}"
        )
    magic, version, zeros, count, index_bytes = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise CorruptStreamError(
            f"archive starts with {magic!r}, an Encke archive with {MAGIC!r}"
        )
    if version != VERSION:
        raise CorruptStreamError(
            f"archive has format version {version}, this Encke reads {VERSION}; update Encke"
        )
    end = _HEAD.size + index_bytes
    if any(zeros) or end + _CRC.size > len(view) or count * _SMALLEST_ENTRY > index_bytes:
        raise CorruptStreamError(
            f"archive claims {count} members in an index of {index_bytes} bytes, "
            f"which its {len(view)} bytes cannot hold"
        )
    (stored,) = _CRC.unpack_from(view, end)
    if zlib.crc32(view[:end]) != stored:
        raise CorruptStreamError("archive's index fails its checksum")
    return _members(view, count, end)


def _members(view: memoryview, count: int, end: int) -> dict[str, memoryview]:
    members: dict[str, memoryview] = {}
    position = _HEAD.size
    written = end + _CRC.size
    for _ in range(count):
        if position + _NAME.size > end:
            raise CorruptStreamError("archive's index ends inside an entry")
        (name_bytes,) = _NAME.unpack_from(view, position)
        place = position + _NAME.size + name_bytes
        if place + _PLACE.size > end:
            raise CorruptStreamError("archive's index ends inside an entry")
        name = _decoded(bytes(view[position + _NAME.size : place]))
        if name in members:
            raise CorruptStreamError(f"archive has two members called {name!r}")
        offset, length = _PLACE.unpack_from(view, place)
        # Members lie one after the other, so none can overlap or hide between others.
        if offset != _aligned(written) or offset + length > len(view):
            raise CorruptStreamError(
                f"archive places member {name!r} at {offset} with {length} bytes, "
                f"expected at {_aligned(written)} within {len(view)}"
            )
        if any(view[written:offset]):
            raise CorruptStreamError("archive has bytes other than zero between its members")
        members[name] = view[offset : offset + length]
        written = offset + length
        position = place + _PLACE.size
    if position != end or written != len(view):
        raise CorruptStreamError("archive has bytes that belong to no member")
    return members


def _aligned(offset: int) -> int:
    return (offset + 7) // 8 * 8


def _encoded(name: str) -> bytes:
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        raw = b""
    if not 1 <= len(raw) <= MAX_NAME_BYTES or b"\0" in raw:
        raise UnsupportedError(
            f"tensor name is {name[:80]!r}, allowed are 1 to {MAX_NAME_BYTES} bytes of UTF-8 "
            "without NUL; rename the tensor"
        )
    return raw


def _decoded(raw: bytes) -> str:
    if not raw or b"\0" in raw:
        raise CorruptStreamError("archive has a member whose name is empty or holds NUL")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise CorruptStreamError("archive has a member whose name is not UTF-8") from None
