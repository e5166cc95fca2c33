"""What the commands of the science examples have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from measured import RESULTS, Row

from encke.cli.output import print_json, print_table
from encke.errors import EnckeError


def parser(
    about: str | None, *, epochs: int, batch: int, width: int, rate: float, results: str
) -> argparse.ArgumentParser:
    """The options that every example has, with its own defaults; `about` is its docstring."""
    made = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    made.add_argument("--epochs", type=int, default=epochs)
    made.add_argument("--batch", type=int, default=batch, help="examples in a step")
    made.add_argument("--width", type=int, default=width, help="channels of the first stage")
    made.add_argument("--rate", type=float, default=rate, help="largest learning rate")
    made.add_argument("--tolerance", type=float, default=0.01, help="of encke.attach")
    made.add_argument("--limit", type=int, help="use only so many examples, for a first try")
    made.add_argument("--out", type=Path, default=RESULTS / results, help="CSV of the measures")
    made.add_argument("--picture", type=Path, help="also draw the results (svg)")
    made.add_argument("--json", action="store_true", help="print the measures as JSON")
    return made


def carry_out(
    options: argparse.Namespace,
    run: Callable[[argparse.Namespace], list[Row]],
    tables: Callable[[Sequence[Row]], dict[str, list[list[str]]]],
) -> int:
    """Run, and print what was measured; 2 if it cannot be done, with the reason on stderr."""
    try:
        rows = run(options)
    except EnckeError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    if options.json:
        print_json([row._asdict() for row in rows])
        return 0
    for title, lines in tables(rows).items():
        print_table(lines[0], lines[1:], title=f"\n{title}")
    print(f"\nevery measure: {options.out}")
    return 0
