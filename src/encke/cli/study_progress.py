"""How a study goes on: a bar with the time left on a terminal, a line a cell elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encke.study.cells import Cell
    from encke.study.run import Watcher


@contextmanager
def watcher() -> Iterator[Watcher]:
    """One that writes to stderr."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("[dim]{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress)


class Lines:
    """A line for each cell that ends."""

    def __init__(self) -> None:
        self._cells = self._there = 0

    def begin(self, *, cells: int, there: int) -> None:
        self._cells, self._there = cells, there
        if there:
            _say(f"{there} of {cells} cells are there already")

    def start(self, cell: Cell) -> None:
        """Lines are for what has ended."""

    def finish(self, cell: Cell, row: dict[str, Any], *, left: float | None) -> None:
        self._there += 1
        place = f"[{self._there:>{len(str(self._cells))}}/{self._cells}]"
        rest = "" if left is None else f", {duration(left)} left"
        _say(f"{place} {cell}: {outcome(row)}{rest}")


class Bar:
    """A bar over all cells, with those that run beside it; failures stay as lines."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("", left="")
        self._running: list[Cell] = []

    def begin(self, *, cells: int, there: int) -> None:
        self._progress.update(self._task, total=cells, completed=there)

    def start(self, cell: Cell) -> None:
        self._running.append(cell)
        self._describe()

    def finish(self, cell: Cell, row: dict[str, Any], *, left: float | None) -> None:
        self._running.remove(cell)
        rest = "" if left is None else f"{duration(left)} left"
        self._progress.update(self._task, advance=1, left=rest)
        self._progress.console.print(f"{cell}: {outcome(row)}", highlight=False, markup=False)
        self._describe()

    def _describe(self) -> None:
        self._progress.update(self._task, description="; ".join(map(str, self._running)))


def outcome(row: dict[str, Any]) -> str:
    """What a row says, in a few words."""
    if row["status"] == "failed":
        return f"failed, {row['error']['type']}: {row['error']['message']}"
    metric, memory = row["metric"], row["memory"]
    value = "none" if metric["final"] is None else f"{metric['final']:.4g}"
    ratio = "" if memory["ratio"] is None else f", {memory['ratio']:.1f}× smaller"
    return (
        f"{metric['name']} {value} {metric['unit']}".rstrip()
        + f"{ratio}, step {row['time']['relative']:.2f}×, {row['seconds']:.0f} s"
    )


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(330), duration(7000)
    ('42 s', '6 min', '1 h 57 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
