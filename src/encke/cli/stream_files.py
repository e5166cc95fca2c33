"""The streams of an `.encke` file: one bare, or several in an archive."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any


def _view(path: Path) -> memoryview:
    with path.open("rb") as file:
        # An empty file cannot be mapped; the readers will say what is wrong with it.
        empty = path.stat().st_size == 0
        return memoryview(
            b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        )


def open_streams(path: Path) -> tuple[dict[str, memoryview], bool]:
    """Every stream by name, and whether they came from an archive; nothing is decoded."""
    from encke.codec import archive
    from encke.errors import CorruptStreamError

    view = _view(path)
    if archive.is_archive(view):
        try:
            return archive.read(view), True
        except CorruptStreamError as error:
            raise CorruptStreamError(f"{path}: {error}") from None
    return {path.stem: view}, False


def attributes_in(path: Path) -> dict[str, Any] | None:
    """What an archive says beside its tensors."""
    from encke.codec import archive
    from encke.errors import CorruptStreamError

    try:
        return archive.attributes_of(_view(path))
    except CorruptStreamError as error:
        raise CorruptStreamError(f"{path}: {error}") from None


def is_compressed(path: Path) -> bool:
    """Whether a file starts as a stream or an archive does."""
    from encke.codec import archive, stream

    with path.open("rb") as file:
        return file.read(4) in (archive.MAGIC, stream.MAGIC)
