"""The tables of docs/holes.md are those of the committed results."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    path = ROOT / "benchmarks" / "holes" / "tables.py"
    spec = importlib.util.spec_from_file_location("encke_holes_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = load()


def test_the_page_shows_the_results() -> None:
    text = tables.PAGE.read_text(encoding="utf-8")
    assert tables.page(text, tables.tables()) == text, (
        "write it anew with `python benchmarks/holes/tables.py --write`"
    )


def test_no_bound_was_left_and_every_hole_came_back() -> None:
    rows = tables.read("holes.csv")
    assert {row["dtype"] for row in rows} == {"float32", "float64", "float16"}
    assert max(tables.numbers(rows, "error_over_bound")) <= 1
    assert {row["holes_exact"] for row in rows} == {"True"}


def test_a_table_of_made_rows() -> None:
    row = {"dtype": "float32", "bound": "0.01", "of_sz3": "2", "of_sz3_filled": "1.5"}
    row |= {"over_clean": "0.02", "error_over_bound": "0.5"}
    other = row | {"of_sz3": "8", "of_sz3_filled": "6", "over_clean": "0.04"}
    assert tables.totals([row, other]).splitlines()[2] == (
        "| float32 | 0.01 | 2 | 4.00 | 2.00 | 3.00 | 1.50 | 1 of 2 | 0.500000 |"
    )
