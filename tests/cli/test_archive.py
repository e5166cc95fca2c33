"""An archive gives its streams back, or says that it is broken."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encke.codec import archive
from encke.errors import CorruptStreamError, EnckeError, UnsupportedError

names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)


def packed(streams: dict[str, bytes]) -> bytes:
    return b"".join(archive.parts(streams))


def resealed(blob: bytes, index_bytes: int) -> bytes:
    """The blob with the checksum of its index corrected, as an attacker would."""
    end = 20 + index_bytes
    return blob[:end] + struct.pack("<I", zlib.crc32(blob[:end])) + blob[end + 4 :]


@given(st.dictionaries(names, st.binary(max_size=40), max_size=6))
def test_every_stream_comes_back_under_its_name_and_in_order(streams: dict[str, bytes]) -> None:
    found = archive.read(packed(streams))
    assert [(name, bytes(stream)) for name, stream in found.items()] == list(streams.items())


def test_members_start_at_multiples_of_eight() -> None:
    blob = packed({"a": b"12345", "b": b"678"})
    for stream in archive.read(blob).values():
        assert blob.index(bytes(stream)) % 8 == 0


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_the_right_error(noise: bytes) -> None:
    with pytest.raises(CorruptStreamError):
        archive.read(noise)
    with pytest.raises(CorruptStreamError):
        archive.read(b"ENCA\1\0\0\0" + noise)


@pytest.mark.parametrize("position", range(72))
def test_a_flipped_bit_in_header_or_index_is_found(position: int) -> None:
    blob = bytearray(packed({"weight": b"x" * 30, "bias": b"y" * 11}))
    assert bytes(blob[72:102]) == b"x" * 30  # up to here it is header, index and padding
    blob[position] ^= 0x10
    with pytest.raises(CorruptStreamError):
        archive.read(blob)


def test_every_truncation_is_found() -> None:
    blob = packed({"weight": b"x" * 30, "bias": b"y" * 11})
    for length in range(len(blob)):
        with pytest.raises(CorruptStreamError):
            archive.read(blob[:length])
    with pytest.raises(CorruptStreamError, match="belong to no member"):
        archive.read(blob + b"\0")


@given(st.data())
def test_a_hostile_index_with_a_good_checksum_never_escapes_the_file(
    data: st.DataObject,
) -> None:
    blob = bytearray(packed({"weight": b"x" * 30, "bias": b"y" * 11}))
    index_bytes = struct.unpack_from("<Q", blob, 12)[0]
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(8, 19 + index_bytes))] = data.draw(st.integers(0, 255))
    claimed = struct.unpack_from("<Q", blob, 12)[0]
    if 20 + claimed + 4 > len(blob):
        claimed = index_bytes
    try:
        found = archive.read(resealed(bytes(blob), claimed))
    except CorruptStreamError:
        return
    assert sum(len(stream) for stream in found.values()) <= len(blob)
    assert all(name for name in found)


def test_a_billion_members_in_a_small_file_are_refused_at_once() -> None:
    head = struct.pack("<4sB3sIQ", b"ENCA", 1, bytes(3), 2**32 - 1, 8)
    with pytest.raises(CorruptStreamError, match="4294967295 members"):
        archive.read(head + bytes(64))


def test_two_members_of_one_name_are_refused() -> None:
    blob = packed({"a": b"1", "b": b"2"}).replace(b"\1\0b", b"\1\0a")
    with pytest.raises(CorruptStreamError, match="two members called 'a'"):
        archive.read(resealed(blob, 38))


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "n" * 70_000])
def test_names_that_cannot_be_written_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="rename the tensor"):
        packed({name: b"1"})


def test_a_newer_version_is_named() -> None:
    blob = bytearray(packed({"a": b"1"}))
    blob[4] = 2
    with pytest.raises(EnckeError, match="version 2"):
        archive.read(blob)
