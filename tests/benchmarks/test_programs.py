"""The programs of benchmarks/programs: their list, their verdicts, and the page about them."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

PROGRAMS_FOLDER = Path(__file__).parents[2] / "benchmarks" / "programs"
sys.path.append(str(PROGRAMS_FOLDER))

import tables  # noqa: E402
from catalogue import PROGRAMS, Program  # noqa: E402
from run import Run, run_once  # noqa: E402
from verdict import verdict  # noqa: E402

SCRIPTS = PROGRAMS_FOLDER / "scripts"


def test_every_script_is_in_the_catalogue() -> None:
    shared = {"log.py", "data.py"}
    assert {p.name for p in SCRIPTS.glob("*.py")} - shared == {
        program.script for program in PROGRAMS.values()
    }
    assert len(PROGRAMS) >= 45


def test_no_program_knows_of_encke() -> None:
    for path in SCRIPTS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not any(name.split(".")[0] == "encke" for name in names), path.name


def judged(**changes: object) -> str:
    facts: dict[str, object] = {
        "exits": [0, 0],
        "plain_exits": [0, 0],
        "plain_losses": [1.0, 1.2],
        "losses": [1.05, 1.2],
        "said": "encke: Net (SGD), 40 steps",
        "stored_ratio": 8.0,
        "time_ratio": 1.02,
        "peak_ratio": 0.9,
    }
    return verdict(**(facts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "ok"),
        ({"exits": [0, 1]}, "crash"),
        ({"plain_exits": [1, 0], "exits": [1, 1]}, "broken without Encke"),
        ({"losses": [1.4, 1.5]}, "loss differs"),
        ({"losses": [float("nan"), 1.0]}, "loss differs"),
        ({"time_ratio": 1.4, "losses": [1.4, 1.5]}, "loss differs, slower than 1.3"),
        ({"stored_ratio": None}, "silent"),
        ({"stored_ratio": 1.1}, "silent"),
        ({"stored_ratio": None, "said": "encke: nothing was compressed: x"}, "stepped aside"),
        (
            {"stored_ratio": 1.1, "time_ratio": 1.1, "peak_ratio": 1.1},
            "silent, slower than 1.05, peak above 1.03",
        ),
    ],
)
def test_verdict_follows_from_the_measurements(
    changes: dict[str, object], expected: str
) -> None:
    assert judged(**changes) == expected


@pytest.mark.slow
@pytest.mark.parametrize("with_encke", [False, True])
def test_a_program_runs_in_a_process_of_its_own(with_encke: bool, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl" if with_encke else None
    done: Run = run_once(Program("lbfgs.py"), ["--steps", "2"], log=log)
    assert done.exit == 0
    assert done.printed["steps"] == 2
    assert done.printed["loss"] < 10
    assert done.peak_mb > 50
    assert ("encke" in done.said) == with_encke
    assert os.path.exists(tmp_path / "log.jsonl") == with_encke


def test_the_page_shows_the_committed_results() -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    made = tables.page_with(page, tables.tables(tables.read()))
    assert page == made, "run: python benchmarks/programs/tables.py --write"
