"""The tables about peaks say what the result file says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "tape"))

import peak_tables


@pytest.mark.parametrize(("path", "kind"), list(peak_tables.PAGES.items()))
def test_a_page_has_the_table_of_the_committed_rows(path: Path, kind: str) -> None:
    text = path.read_text(encoding="utf-8")
    table = {"short": peak_tables.short, "long": peak_tables.long}[kind](peak_tables.read())
    assert peak_tables.page(text, table) == text, (
        "write it anew with `python benchmarks/tape/peak_tables.py --write`"
    )


def test_quotients_are_those_of_the_worst_seeds() -> None:
    def row(way: str, seed: int, peak: float) -> dict[str, str]:
        return {
            "model": "gcn", "batch": "8", "way": way, "seed": str(seed), "steps": "10",
            "peak_mb": str(peak), "first_mb": "1", "worst_over_typical": "1.5",
            "seconds": "20" if way == "plain" else "25", "loss": "0.5",
        }  # fmt: skip

    rows = [row("plain", 0, 100.0), row("Encke", 0, 20.0), row("Encke", 1, 25.0)]
    (line,) = peak_tables.long(rows).splitlines()[2:]
    assert "| 25 | 0.25 |" in line
    assert line.endswith("| 1.50 | 1.25 |")
