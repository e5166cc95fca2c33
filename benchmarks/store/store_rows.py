"""Result files of the store's benchmarks: rows are replaced by their key, others stay."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"


def read(name: str) -> list[dict[str, str]]:
    path = RESULTS / name
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def put(name: str, rows: Sequence[dict[str, Any]], *, key: Sequence[str]) -> None:
    """Add rows to a file; those with the same key are replaced."""
    new = [{k: _text(v) for k, v in row.items()} for row in rows]
    taken = {tuple(row[k] for k in key) for row in new}
    kept = [row for row in read(name) if tuple(row[k] for k in key) not in taken]
    together = sorted(kept + new, key=lambda row: tuple(row[k] for k in key))
    with (RESULTS / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(new[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(together)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)
