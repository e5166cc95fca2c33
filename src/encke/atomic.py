"""Output files that are either complete or not there.

Everything that Encke writes for a user goes through `replacing`: to a file beside the target,
flushed to the disk, then renamed. Whatever interrupts it, the target holds its old content or
its new content, and the file beside it is removed.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from encke.errors import OutputError


def check_output(path: Path, *, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Raise `OutputError`, before any work is done, if `path` cannot or must not be written.

    force    whether a file that exists may be replaced
    inputs   files that are read: they are never replaced, by whatever path or link
    """
    for source in inputs:
        if _same_file(path, source):
            raise OutputError(
                f"the output {path} and the input {source} are the same file, which would be "
                "lost; give another name"
            )
    target = Path(os.path.realpath(path))
    if os.path.lexists(path) or target.exists():
        _check_replaceable(path, target, force=force)
    folder = target.parent
    if not folder.is_dir():
        missing = "is not a folder" if folder.exists() else "does not exist; make it first"
        raise OutputError(f"cannot write {path}: the folder {folder} {missing}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(
            f"cannot write {path}: the folder {folder} is read-only; give another one"
        )


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist
        return False


def _check_replaceable(path: Path, target: Path, *, force: bool) -> None:
    if target.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; name a file in it")
    if target.exists() and not target.is_file():
        raise OutputError(
            f"cannot write {path}: it is a device or a pipe, and a file would take its place; "
            "name a regular file"
        )
    if not force:
        raise OutputError(f"{path} exists; give --force to replace it, or another name")


@contextmanager
def replacing(path: Path, *, force: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends without error.

    Where `path` is a link, the file that it leads to is replaced and the link stays. A file
    that cannot be written, as on a full disk, raises `OutputError`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as file:
    ...         _ = file.write(b"whole")
    ...     os.listdir(folder)
    ['a.txt']
    """
    check_output(path, force=force)
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        check_output(path, force=force)  # it may have come to exist meanwhile
        os.replace(part, target)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; nothing was changed"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, force: bool = True) -> None:
    """A text that takes the place of `path` whole."""
    with replacing(path, force=force) as file:
        file.write(text.encode("utf-8"))


def remove_parts(folder: Path) -> None:
    """Remove what writers that were killed have left in a folder."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)
