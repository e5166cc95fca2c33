"""Several streams in one file: docs/format.md, "Files with several tensors"."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from encke.errors import CorruptStreamError, UnsupportedError

MAGIC = b"ENCA"
VERSION = 1
MAX_NAME_BYTES = 65_535
_HEAD = struct.Struct("<4sBB2sIQ")  # magic, version, flags, zeros, members, bytes of the index
_WITH_TEXT = 1
_PLACE = struct.Struct("<QQ")  # offset, length
_NAME = struct.Struct("<H")
_CRC = struct.Struct("<I")
_TEXT = struct.Struct("<I")
_SMALLEST_ENTRY = _NAME.size + 1 + _PLACE.size


def is_archive(blob: bytes | bytearray | memoryview) -> bool:
    """Whether a file starts as an archive does (a bare stream starts otherwise)."""
    return bytes(memoryview(blob)[:4]) == MAGIC


def parts(
    streams: Mapping[str, bytes], attributes: Mapping[str, Any] | None = None
) -> Iterator[bytes]:
    """The archive of `streams` piece by piece, in the mapping's order.

    `attributes` is what JSON can hold; who reads the archive gets it from `attributes_of`.

    >>> blob = b"".join(parts({"weight": b"first", "bias": b"second"}))
    >>> {name: bytes(stream) for name, stream in read(blob).items()}
    {'weight': b'first', 'bias': b'second'}
    """
    names = {name: _encoded(name) for name in streams}
    index_bytes = sum(_NAME.size + len(raw) + _PLACE.size for raw in names.values())
    text = b"" if attributes is None else json.dumps(attributes, ensure_ascii=False).encode()
    flags, text_bytes = 0, 0
    if attributes is not None:
        flags, text_bytes = _WITH_TEXT, _TEXT.size + len(text)
    offset = _aligned(_HEAD.size + index_bytes + text_bytes + _CRC.size)
    index = bytearray(_HEAD.pack(MAGIC, VERSION, flags, bytes(2), len(names), index_bytes))
    for name, stream in streams.items():
        index += _NAME.pack(len(names[name])) + names[name] + _PLACE.pack(offset, len(stream))
        offset = _aligned(offset + len(stream))
    if attributes is not None:
        index += _TEXT.pack(len(text)) + text
    index += _CRC.pack(zlib.crc32(index))
    yield bytes(index)
    written = len(index)
    for stream in streams.values():
        yield bytes(_aligned(written) - written)
        yield stream
        written = _aligned(written) + len(stream)


def attributes_of(blob: bytes | bytearray | memoryview) -> dict[str, Any] | None:
    """What an archive says beside its tensors; None if it says nothing.

    >>> blob = b"".join(parts({"sst": b"stream"}, {"units": "K"}))
    >>> attributes_of(blob)
    {'units': 'K'}
    """
    view = memoryview(blob).cast("B")
    _, _, _, raw = _front(view)
    if raw is None:
        return None
    try:
        found = json.loads(bytes(raw))
    except (UnicodeDecodeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CorruptStreamError("archive has attributes that are no JSON object")
    return found


def read(blob: bytes | bytearray | memoryview) -> dict[str, memoryview]:
    """Every member's stream by its name, in the order of the file and without copying.

    Whatever the bytes, this returns or raises `CorruptStreamError`. The streams carry
    their own checksums; the index has one here.
    """
    view = memoryview(blob).cast("B")
    count, end, checked, _ = _front(view)
    return _members(view, count, end, checked)


def _front(view: memoryview) -> tuple[int, int, int, memoryview | None]:
    """Number of members, ends of the index and of its checksum, and the text behind it."""
    if len(view) < _HEAD.size:
        raise CorruptStreamError(
            f"archive has {len(view)} bytes, its header alone takes {_HEAD.size}"
        )
    magic, version, flags, zeros, count, index_bytes = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise CorruptStreamError(
            f"archive starts with {magic!r}, an Encke archive with {MAGIC!r}"
        )
    if version != VERSION or flags > _WITH_TEXT:
        raise CorruptStreamError(
            f"archive has format version {version} and flags {flags}, this Encke reads version "
            f"{VERSION} with flags up to {_WITH_TEXT}; update Encke"
        )
    end = _HEAD.size + index_bytes
    if any(zeros) or end + _CRC.size > len(view) or count * _SMALLEST_ENTRY > index_bytes:
        raise CorruptStreamError(
            f"archive claims {count} members in an index of {index_bytes} bytes, "
            f"which its {len(view)} bytes cannot hold"
        )
    text, stop = None, end
    if flags == _WITH_TEXT:
        (length,) = _TEXT.unpack_from(view, end)
        stop = end + _TEXT.size + length
        if stop + _CRC.size > len(view):
            raise CorruptStreamError(f"archive claims {length} bytes of attributes, too many")
        text = view[end + _TEXT.size : stop]
    (stored,) = _CRC.unpack_from(view, stop)
    if zlib.crc32(view[:stop]) != stored:
        raise CorruptStreamError("archive's index fails its checksum")
    return count, end, stop + _CRC.size, text


def _members(view: memoryview, count: int, end: int, written: int) -> dict[str, memoryview]:
    members: dict[str, memoryview] = {}
    position = _HEAD.size
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
