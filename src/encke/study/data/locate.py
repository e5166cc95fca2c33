"""Where data sets and the packages that read them are looked for."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from encke.errors import UnsupportedError
from encke.study.data.errors import MissingDataError

VARIABLE = "ENCKE_DATA"


def folders(root: str | Path | None, *, system: Sequence[Path] = ()) -> list[Path]:
    """`root` alone if it is given, else the folder in ENCKE_DATA, then those of the system."""
    if root is not None:
        return [Path(root).expanduser()]
    named = os.environ.get(VARIABLE)
    return [*([Path(named).expanduser()] if named else []), *system]


def inside(places: Iterable[Path], subfolders: Sequence[str]) -> list[Path]:
    """Every place itself, then its subfolders of these names."""
    return [place / name for place in places for name in (".", *subfolders)]


def missing(name: str, looked: Sequence[Path | str], advice: str) -> MissingDataError:
    """The error that says where the data set `name` was looked for and how to get it."""
    where = (
        f"Looked for {', '.join(map(str, looked))}."
        if looked
        else f"No folder to look in: neither root= nor {VARIABLE} is given."
    )
    return MissingDataError(
        f"data set {name!r} was not found. {where} {advice} Then give the folder as root= or "
        f"in the environment variable {VARIABLE}."
    )


def first_file(
    name: str,
    file: str,
    root: str | Path | None,
    *,
    subfolders: Sequence[str] = (),
    advice: str,
) -> Path:
    """The first folder's `file`; raises `MissingDataError` where there is none."""
    candidates = [place / file for place in inside(folders(root), subfolders)]
    for path in candidates:
        if path.is_file():
            return path
    raise missing(name, candidates, advice)


def package(module: str, *, distribution: str, reason: str) -> Any:
    """A module of an optional package, imported when data needs it and not before."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnsupportedError(
            f"{reason} needs {distribution}, which cannot be imported ({error}); install it "
            "with: pip install 'encke[bench]'"
        ) from error
