"""Output files that are either complete or not there."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def refuse_to_overwrite(path: Path, *, force: bool) -> None:
    """Raise before any work is done if `path` exists and may not be replaced."""
    if path.exists() and not force:
        raise FileExistsError(
            f"{path} exists; give --force to replace it, or -o for another name"
        )


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends without error."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
