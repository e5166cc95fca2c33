"""The streams of an `.encke` file: one bare, or several in an archive."""

from __future__ import annotations

import mmap
from pathlib import Path


def open_streams(path: Path) -> tuple[dict[str, memoryview], bool]:
    """Every stream by name, and whether they came from an archive; nothing is decoded."""
    from encke.codec import archive
    from encke.errors import CorruptStreamError

    with path.open("rb") as file:
        # An empty file cannot be mapped; the readers will say what is wrong with it.
        empty = path.stat().st_size == 0
        view = memoryview(
            b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        )
    if archive.is_archive(view):
        try:
            return archive.read(view), True
        except CorruptStreamError as error:
            raise CorruptStreamError(f"{path}: {error}") from None
    return {path.stem: view}, False
