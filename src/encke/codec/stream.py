"""The container of docs/format.md, section 1: bytes on disk or on a wire."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass

import torch

from encke.errors import CorruptStreamError

MAGIC = b"ENCK"
VERSION, WITH_HOLES = 1, 2
MAX_DIMENSIONS = 32
_FIXED = struct.Struct("<4sBBBBBBHIddQ")
_CHECKSUMMED = 1

DTYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.float64,
    3: torch.float16,
    4: torch.bfloat16,
    5: torch.bool,
    6: torch.uint8,
    7: torch.int8,
    8: torch.int16,
    9: torch.int32,
    10: torch.int64,
}
DTYPE_IDS = {dtype: number for number, dtype in DTYPES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a container says about its payload."""

    codec_id: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]
    bound_code: int
    bound_number: float
    promised: float
    holes: bool = False

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def header_bytes(dimensions: int) -> int:
    """Length of the container's header, and so where its payload starts."""
    return (_FIXED.size + 9 * dimensions + 7) // 8 * 8


def write(header: Header, payload: bytes | memoryview, *, checksum: bool = True) -> bytes:
    """Header, payload and, unless declined, a CRC-32 of both."""
    n = len(header.shape)
    head = _FIXED.pack(
        MAGIC,
        WITH_HOLES if header.holes else VERSION,
        header.codec_id,
        DTYPE_IDS[header.dtype],
        _CHECKSUMMED if checksum else 0,
        n,
        header.bound_code,
        0,
        0,
        header.bound_number,
        header.promised,
        len(payload),
    )
    head += struct.pack(f"<{n}Q", *header.shape) + bytes(header.order)
    head = head.ljust(header_bytes(n), b"\0")
    if not checksum:
        return head + bytes(payload)
    crc = zlib.crc32(payload, zlib.crc32(head))
    return b"".join((head, payload, struct.pack("<I", crc)))


def read(blob: bytes | bytearray | memoryview) -> tuple[Header, memoryview]:
    """The header and the payload of one stream; every rule of the format is checked."""
    view = memoryview(blob).cast("B")
    if len(view) < _FIXED.size:
        raise CorruptStreamError(
            f"stream has {len(view)} bytes, a header alone takes {_FIXED.size}"
        )
    (
        magic,
        version,
        codec_id,
        dtype_id,
        flags,
        n,
        bound_code,
        zero16,
        zero32,
        bound_number,
        promised,
        length,
    ) = _FIXED.unpack_from(view)
    if magic != MAGIC:
        raise CorruptStreamError(
            f"stream starts with {magic!r}, an Encke stream with {MAGIC!r}"
        )
    if version not in (VERSION, WITH_HOLES):
        raise CorruptStreamError(
            f"stream has format version {version}, this Encke reads {VERSION} and "
            f"{WITH_HOLES}; update Encke"
        )
    if flags & ~_CHECKSUMMED or zero16 or zero32 or n > MAX_DIMENSIONS:
        raise CorruptStreamError("stream header has reserved bits set or too many dimensions")
    start = header_bytes(n)
    trailer = 4 if flags & _CHECKSUMMED else 0
    if len(view) != start + length + trailer:
        raise CorruptStreamError(
            f"stream has {len(view)} bytes, its header says {start + length + trailer}"
        )
    if trailer:
        (stored,) = struct.unpack_from("<I", view, start + length)
        if zlib.crc32(view[: start + length]) != stored:
            raise CorruptStreamError("stream fails its checksum")
    if dtype_id not in DTYPES:
        raise CorruptStreamError(f"stream has unknown dtype id {dtype_id}")
    shape = struct.unpack_from(f"<{n}Q", view, _FIXED.size)
    order = tuple(view[_FIXED.size + 8 * n : _FIXED.size + 9 * n])
    if sorted(order) != list(range(n)) or any(view[_FIXED.size + 9 * n : start]):
        raise CorruptStreamError("stream has a memory order that is no permutation")
    # An extent of 0 does not excuse the others: strides are products of those that are not.
    if math.prod(max(1, extent) for extent in shape) >= 2**59:
        raise CorruptStreamError(f"stream claims the shape {shape}, beyond what can exist")
    header = Header(
        codec_id=codec_id,
        dtype=DTYPES[dtype_id],
        shape=shape,
        order=order,
        bound_code=bound_code,
        bound_number=bound_number,
        promised=promised,
        holes=version == WITH_HOLES,
    )
    return header, view[start : start + length]
