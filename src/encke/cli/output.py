"""What a command prints: a table for people, or JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any, Literal


def print_json(value: Any) -> None:
    """Strict JSON: a number that JSON does not have becomes null."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", names: int = 1
) -> None:
    """Columns with numbers to the right; rich on a terminal, aligned text elsewhere.

    The first columns are `names` and stand to the left. A row shorter than the columns ends in
    a remark that may run over the rest.
    """
    if sys.stdout.isatty():
        _print_rich(columns, rows, title, names)
        return
    if title:
        print(title)
    full = [row for row in rows if len(row) == len(columns)]
    widths = [max(map(len, column)) for column in zip(columns, *full, strict=True)]
    remarked = [row[0] for row in rows if len(row) < len(columns)]
    widths[0] = max([widths[0], *map(len, remarked)])
    print(_aligned(columns, widths, names))
    for row in rows:
        if len(row) == len(columns):
            print(_aligned(row, widths, names))
        else:
            print(f"{row[0].ljust(widths[0])}  {' '.join(row[1:])}")


def _aligned(cells: Sequence[str], widths: Sequence[int], names: int) -> str:
    placed = (
        cell.ljust(width) if column < names else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(placed).rstrip()


def _print_rich(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str, names: int
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=title or None, title_justify="left", box=None)
    for number, column in enumerate(columns):
        justify: Literal["left", "right"] = "left" if number < names else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    remarks = []
    for row in rows:
        if len(row) == len(columns):
            table.add_row(*map(escape, row))
        else:
            remarks.append(f"[bold]{escape(row[0])}[/bold]: {escape(' '.join(row[1:]))}")
    console.print(table)
    for remark in remarks:
        console.print(remark)
