"""What a study measured, by way and seed: a CSV file, and tables of it.

A row is one number: `way` is how it was come by (a baseline, plain training, Encke), `seed` is
empty where none was involved.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


class Row(NamedTuple):
    """One number."""

    way: str
    seed: int | None
    measure: str
    value: float


def write(path: Path, rows: Iterable[Row]) -> None:
    """The whole file at once: one that is interrupted leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Row._fields)
        for way, seed, measure, value in rows:
            table.writerow([way, "" if seed is None else seed, measure, f"{value:.5g}"])
    temporary.replace(path)


def read(path: Path) -> list[Row]:
    """The rows of a file."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Row(way, int(seed) if seed else None, measure, float(value))
            for way, seed, measure, value in list(csv.reader(file))[1:]
        ]


class Column(NamedTuple):
    """A measure in a table: its heading, and how a number of it is written."""

    measure: str
    heading: str
    form: str = "{:.3f}"


def table(
    rows: Iterable[Row], ways: Sequence[str], columns: Sequence[Column]
) -> list[list[str]]:
    """The heading and a line for each way: mean over seeds ± their standard deviation."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        found.setdefault((row.way, row.measure), []).append(row.value)
    lines = [["", *(column.heading for column in columns)]]
    for way in ways:
        cells = [_cell(found.get((way, c.measure), []), c.form) for c in columns]
        lines.append([way, *cells])
    return lines


def _cell(values: list[float], form: str) -> str:
    if not values:
        return ""
    mean = form.format(statistics.fmean(values))
    if len(values) == 1:
        return mean
    return f"{mean} ± {form.replace('+', '').format(statistics.stdev(values))}"


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table as it stands in a page of the documentation."""
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|" + "---|" * len(lines[0]), *body]) + "\n"


def print_pages(
    path: Path, tables: Callable[[Sequence[Row]], dict[str, list[list[str]]]]
) -> None:
    """The tables of a file as they stand in the documentation, each below its title."""
    for title, lines in tables(read(path)).items():
        print(f"{title}:\n\n{markdown(lines)}")
