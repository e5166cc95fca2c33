"""Bytes as a zstd frame of known size."""

from __future__ import annotations

import zstandard

from encke.errors import CorruptStreamError


def frame_of(data: memoryview | bytes, *, level: int) -> bytes:
    """A frame that names how many bytes it holds, without a checksum of its own."""
    return zstandard.ZstdCompressor(
        level=level, write_content_size=True, write_checksum=False, write_dict_id=False
    ).compress(data)


def bytes_of(frame: bytes, size: int) -> bytes:
    """The `size` bytes of a frame.

    It is decompressed only after its header has named that size, so no frame can ask for
    memory of its own choosing.

    >>> bytes_of(frame_of(b"abc" * 100, level=1), 300) == b"abc" * 100
    True
    """
    try:
        # A skippable frame also has a content size; zstd then decompresses to nothing.
        if zstandard.get_frame_parameters(frame).content_size != size:
            raise CorruptStreamError(f"a zstd frame does not hold the {size} bytes it should")
        data = zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise CorruptStreamError(f"a zstd frame is broken: {error}") from None
    if len(data) != size:
        raise CorruptStreamError(f"a zstd frame holds {len(data)} bytes instead of {size}")
    return data
