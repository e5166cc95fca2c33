"""Results on disk: one file a cell, written whole or not at all.

docs/study-results.md is the written schema, `encke.study.schema` checks a row against it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from encke import atomic
from encke.study.definition import Study
from encke.study.errors import StudyError

SCHEMA = 1
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a results directory holds.

    study    the resolved study, as study.json has it
    rows     of the cells that are done or have failed, in the study's order
    missing  ids of cells without a row
    """

    study: dict[str, Any]
    rows: list[Row]
    missing: list[str] = field(default_factory=list)


def read(directory: str | Path) -> Results:
    """The results in a directory, or in the only directory of results inside it."""
    folder = find(Path(directory))
    study = _load(folder / "study.json")
    if study.get("schema") != SCHEMA:
        raise StudyError(
            f"{folder} has results of schema {study.get('schema')!r}, this reads {SCHEMA}; run "
            "the study again, or read it with the release that wrote it"
        )
    found = _rows(folder, study["cells"])
    return Results(
        study=study,
        rows=[found[cell] for cell in study["cells"] if cell in found],
        missing=[cell for cell in study["cells"] if cell not in found],
    )


def _rows(folder: Path, cells: list[str]) -> dict[str, Row]:
    """By cell: from the cells' own files, or from the lines that stand for all of them."""
    lines = folder / "results.jsonl"
    if not (folder / "cells").is_dir() and lines.is_file():
        rows = map(json.loads, lines.read_text(encoding="utf-8").splitlines())
        return {row["cell"]: row for row in rows}
    each = ((cell, read_cell(folder, cell)) for cell in cells)
    return {cell: row for cell, row in each if row is not None}


def find(directory: Path) -> Path:
    """The directory with the study.json."""
    if (directory / "study.json").is_file():
        return directory
    inside = sorted(path.parent for path in directory.glob("*/study.json"))
    if len(inside) == 1:
        return inside[0]
    if inside:
        raise StudyError(
            f"{directory} holds several studies ({', '.join(p.name for p in inside)}); name one"
        )
    raise StudyError(
        f"{directory} holds no results (no study.json); give the directory that "
        "`encke study run` wrote to"
    )


def files(directory: Path) -> list[Path]:
    """The files of results in a directory, or in the only one of results inside it."""
    folder = find(directory)
    return [folder / "study.json", folder / "results.jsonl", *folder.glob("cells/*.json")]


def cells_of(directory: Path) -> list[str]:
    """The cells of the study in this very directory; none if there is no study."""
    cells: list[str] = _own_study(directory / "study.json").get("cells", [])
    return cells


def cell_path(directory: Path, cell: str) -> Path:
    """Where the row of a cell is."""
    return directory / "cells" / f"{cell}.json"


def read_cell(directory: Path, cell: str) -> Row | None:
    """The row of a cell; None if it has none yet."""
    path = cell_path(directory, cell)
    return _load(path) if path.is_file() else None


def write_cell(directory: Path, row: Row) -> None:
    """The row of one cell, atomically."""
    atomic.write_text(cell_path(directory, row["cell"]), _json(row) + "\n")


def write_study(directory: Path, study: Study) -> None:
    """study.json, atomically. The time of the first run stays, and so do rows of cells."""
    path = directory / "study.json"
    created = _own_study(path).get("created")
    kept = _rows(directory, cells_of(directory))
    value = {
        "schema": SCHEMA,
        "name": study.name,
        "title": study.title,
        "cells": [cell.id for cell in study.cells],
        "definition": dict(study.given),
        "created": created or now(),
    }
    (directory / "cells").mkdir(parents=True, exist_ok=True)
    for cell, row in kept.items():  # a copy of a directory may have them as lines alone
        if not cell_path(directory, cell).exists():
            write_cell(directory, row)
    atomic.write_text(path, _json(value, indent=1) + "\n")


def _own_study(path: Path) -> dict[str, Any]:
    """The study.json that a study wrote; empty if there is none."""
    if not path.is_file():
        return {}
    found = _load(path)
    if found.get("schema") != SCHEMA:
        raise StudyError(
            f"{path} is not of a study of schema {SCHEMA} and would be replaced; give another "
            "--out, or move it away"
        )
    return found


def write_lines(directory: Path, rows: Iterable[Row]) -> None:
    """results.jsonl: all rows, one a line."""
    lines = "".join(_json(row) + "\n" for row in rows)
    atomic.write_text(directory / "results.jsonl", lines)


def remove_parts(directory: Path) -> None:
    """What runs that were killed while writing have left behind."""
    for folder in (directory, directory / "cells"):
        atomic.remove_parts(folder)


def now() -> str:
    """The time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _load(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise StudyError(f"{path} is not JSON ({error}); remove it and run again") from None
    if not isinstance(value, dict):
        raise StudyError(f"{path} holds no object; remove it and run again")
    return value


def _json(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value
