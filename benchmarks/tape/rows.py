"""Rows of results: written after each one, so that an interrupted run loses nothing."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "results"


class Rows:
    """A CSV file whose rows are known by the columns `key`; a new row replaces an old one."""

    def __init__(self, name: str, columns: Sequence[str], key: Sequence[str]) -> None:
        self.path = RESULTS / name
        self._columns, self._key = list(columns), list(key)
        self._rows: dict[tuple[str, ...], dict[str, str]] = {}
        if self.path.exists():
            with self.path.open(newline="") as file:
                for row in csv.DictReader(file):
                    self._rows[tuple(row[k] for k in self._key)] = row

    def put(self, **values: object) -> None:
        row = {c: _text(values.get(c)) for c in self._columns}
        self._rows[tuple(row[k] for k in self._key)] = row
        temporary = self.path.with_suffix(".part")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows.values())
        temporary.replace(self.path)

    def has(self, **key: object) -> bool:
        return tuple(_text(key[k]) for k in self._key) in self._rows


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)
