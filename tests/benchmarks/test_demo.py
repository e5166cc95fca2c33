"""The demo runs from nothing, and its page shows what it measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    page: str
    record: dict[str, Any]
    printed: str

    def table(self, name: str) -> list[list[str]]:
        """The cells of one table of the page, row by row."""
        found = re.search(rf'<table id="{name}">.*?<tbody>(.*?)</tbody>', self.page, re.S)
        assert found is not None, name
        rows = re.findall(r"<tr>(.*?)</tr>", found[1])
        return [
            [unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows
        ]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
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
    return Outcome(
        page=page.read_text(encoding="utf-8"),
        record=json.loads(record.read_text(encoding="utf-8")),
        printed=done.stdout,
    )


def size(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def test_page_and_screen_compare_the_recorded_numbers(outcome: Outcome) -> None:
    plain, encke = outcome.record["runs"]
    time = outcome.record["time"]
    expected = [
        [size(plain["kept_bytes"]), size(encke["kept_bytes"])],
        ["1.0×", f"{plain['kept_bytes'] / encke['kept_bytes']:.1f}×"],
        [size(plain["peak_bytes"]), size(encke["peak_bytes"])],
        ["1.00×", f"{time['median_ratio']:.2f}×"],
        ["1.00×", f"{time['total_ratio']:.2f}×"],
        [f"{run['train_loss']:.4f}" for run in (plain, encke)],
        [f"{run['test_loss']:.4f}" for run in (plain, encke)],
        [f"{100 * run['accuracy']:.1f} %" for run in (plain, encke)],
    ]
    shown = outcome.table("comparison")
    assert [row[1:] for row in shown] == expected
    for row in shown:
        assert re.search(r"\s+".join(map(re.escape, row)), outcome.printed), row


def test_every_kept_tensor_is_shown_as_it_is_recorded(outcome: Outcome) -> None:
    tensors = [t for t in outcome.record["kept"]["tensors"] if t["why"] != "small"]
    *shown, rest = outcome.table("kept")
    assert [row[:2] for row in shown] == [[t["site"]["module"], t["how"]] for t in tensors]
    assert [row[-1] for row in shown] == [t["why"] for t in tensors]
    assert [row[4] for row in shown] == [
        size(t["stored"]) if t["stored"] else "" for t in tensors
    ]
    assert rest[1] == "exact"
    assert {t["how"] for t in tensors} >= {"lossy", "derived", "mask", "index", "shape"}
    for tensor in tensors:
        assert (tensor["bound"] > 0) == (tensor["how"] == "lossy")


def test_what_is_kept_adds_up(outcome: Outcome) -> None:
    kept = outcome.record["kept"]
    plain, encke = outcome.record["runs"]
    assert sum(t["stored"] for t in kept["tensors"]) == kept["stored"] == encke["kept_bytes"]
    assert plain["kept_bytes"] == kept["plain"], "counted by hooks, and by the tape"
    assert kept["stored"] < kept["plain"] / 8
    full = [k for k in outcome.record["training"]["kept"] if k["images"] == 64]
    assert {k["plain"] for k in full} == {kept["plain"]}


def test_gradient_errors_are_predicted_and_within_the_tolerance(outcome: Outcome) -> None:
    found = outcome.record["gradients"]
    closed = [use for use in found["uses"] if use["form"] == "closed form"]
    assert [use["parameter"] for use in closed] == [
        *(f"conv{i}.weight" for i in range(1, 6)),
        "linear1.weight",
    ]
    for use in closed:
        assert 0.5 < use["measured"] / use["predicted"] < 2, use
    whole = found["parameters"]
    assert 0 < whole["reference"] < outcome.record["settings"]["tolerance"]
    assert f"{100 * whole['gradient']:.2g} % of its own squared norm" in outcome.page
    numbers = [row[3:5] for row in outcome.table("gradients")]
    for use in found["uses"]:
        assert [f"{use['predicted']:.1e}", f"{use['measured']:.1e}"] in numbers


def test_both_runs_start_alike_and_stay_close(outcome: Outcome) -> None:
    plain, encke = outcome.record["runs"]
    assert plain["losses"][0] == encke["losses"][0]
    assert plain["losses"][-1] == pytest.approx(encke["losses"][-1], rel=0.05)


def test_page_needs_nothing_from_outside(outcome: Outcome) -> None:
    assert not re.search(r"(src|href|url|@import)\s*[=(]", outcome.page)
    assert outcome.page.count("<svg") == 3
    assert "prefers-color-scheme: dark" in outcome.page
    assert "@media print" in outcome.page


def test_too_few_digits_are_refused_with_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--limit", "20"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "at least one epoch and 80 digits" in done.stderr
