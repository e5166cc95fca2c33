"""The demo runs from nothing, and its page shows what it measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], str]:
    """Page, record and printed text of a short run."""
    folder = tmp_path_factory.mktemp("demo")
    page, record = folder / "report.html", folder / "run.json"
    command = [sys.executable, str(DEMO), "--epochs", "1", "--limit", "240"]
    done = subprocess.run(
        [*command, "--out", str(page), "--json", str(record)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (
        page.read_text(encoding="utf-8"),
        json.loads(record.read_text(encoding="utf-8")),
        done.stdout,
    )


def expected_cells(record: dict[str, Any]) -> list[str]:
    first = record["runs"][0]
    cells = []
    for run in record["runs"]:
        cells += [
            f"{run['held_bytes'] / 1e6:.2f} MB",
            f"{run['uncompressed_bytes'] / run['held_bytes']:.1f}×",
            f"{run['peak_bytes'] / 1e6:.2f} MB",
            f"{run['step_seconds'] / first['step_seconds']:.2f}×",
            f"{100 * run['accuracy']:.1f} %",
        ]
    return cells


def test_page_and_table_show_the_recorded_numbers(
    outcome: tuple[str, dict[str, Any], str],
) -> None:
    page, record, printed = outcome
    cells = re.findall(r"<td>(.*?)</td>", page)
    numbers = [cell for cell in cells if cell not in ("plain", "Encke")]
    assert numbers == expected_cells(record)
    assert all(number in printed for number in numbers)
    encke = record["runs"][1]
    assert f"{encke['largest_error_over_bound']:.4f} of the bound" in page
    for layer in encke["layers"]:
        assert f"{layer['plain'] / 1e3:,.0f} → {layer['stored'] / 1e3:,.0f} kB" in page


def test_page_needs_nothing_from_outside(outcome: tuple[str, dict[str, Any], str]) -> None:
    page = outcome[0]
    assert not re.search(r"(src|href|url|@import)\s*[=(]", page)
    assert page.count("<svg") == 3


def test_every_error_stays_inside_the_bound(outcome: tuple[str, dict[str, Any], str]) -> None:
    encke = outcome[1]["runs"][1]
    assert 0.9 < encke["largest_error_over_bound"] <= 1.0
    assert sum(encke["error_histogram"]) > 100_000


def test_both_runs_keep_the_same_tensors_and_start_alike(
    outcome: tuple[str, dict[str, Any], str],
) -> None:
    plain, encke = outcome[1]["runs"]
    assert plain["held_bytes"] == plain["uncompressed_bytes"] == encke["uncompressed_bytes"]
    assert encke["held_bytes"] < plain["held_bytes"] / 5
    assert plain["losses"][0] == encke["losses"][0]
