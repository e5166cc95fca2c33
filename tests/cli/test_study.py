"""`encke study` and `encke train` as commands."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from encke.cli import main, study_progress
from encke.study import results
from encke.study.schema import problems

pytestmark = pytest.mark.slow

DOCUMENT = (Path(__file__).parents[2] / "docs" / "how-to-study.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of docs/how-to-study.md, in the directory that commands run in."""
    for block in [*blocks("python"), *blocks("toml")]:
        name, _, content = block.removeprefix("# ").partition("\n")
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_study_of_the_document_runs_and_its_table_is_in_the_page(
    own_files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, report = blocks("sh")[0].splitlines()
    assert main(run.split()[1:]) == 0
    shown = capsys.readouterr().out
    found = results.read(own_files / "my-results")
    assert [row["policy_kind"] for row in found.rows] == ["plain", "encke", "checkpoint"]
    assert [problems(row) for row in found.rows] == [[], [], []]
    for row in found.rows:
        assert row["training"]["steps"] == 16
        assert row["metric"]["name"] == "accuracy"
        assert f"{row['metric']['final']:.1f} %" in shown
        assert f"{row['memory']['ratio']:.1f}× smaller" in shown
    # Again: nothing runs, the same table.
    assert main([*run.split()[1:], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["ran"], again["done"], again["failed"]) == (0, 3, [])
    assert [one["policy"] for one in again["table"]] == [row["policy"] for row in found.rows]
    pages: list[Any] = []

    def page(study: dict[str, Any], rows: list[dict[str, Any]]) -> str:
        pages.append((study["name"], len(rows)))
        return "<html></html>"

    monkeypatch.setitem(sys.modules, "encke.study.report", SimpleNamespace(page=page))
    assert main(report.split()[1:]) == 0
    assert pages == [("my_model", 3)]
    assert (own_files / "report.html").read_text() == "<html></html>"
    assert "report.html: 3 cells" in capsys.readouterr().out


def test_the_study_on_file_of_the_document_is_one(own_files: Path) -> None:
    from encke.study.definition import read

    assert len(read(own_files / "study.toml").cells) == 3 * 4 * 3


def test_every_kind_of_way_is_in_the_document() -> None:
    from encke.study.kinds import KINDS

    for name, kind in KINDS.items():
        (written,) = re.findall(rf"^\| `({name}(?::[^`]*)?)` \|", DOCUMENT, re.MULTILINE)
        for option in kind.options:
            told = option in written or f"`{option}`" in DOCUMENT or option == "derive"
            assert told, f"{name}: {option}"


@pytest.mark.slow
def test_train_writes_metrics_and_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "mlp", "--data", "digits", "--policy", "encke", "--steps", "4"]
    command += ["--out", "runs/a", "--batch", "128", "--json"]
    assert main(command) == 0
    captured = capsys.readouterr()
    row = json.loads(captured.out)
    assert problems(row) == []
    assert row["training"]["batch"] == 128
    assert "step 4" in captured.err
    lines = (tmp_path / "runs" / "a" / "metrics.jsonl").read_text().splitlines()
    steps = [one for one in map(json.loads, lines) if one["kind"] == "step"]
    assert [one["step"] for one in steps] == [1, 2, 3, 4]
    assert results.read(tmp_path / "runs" / "a").rows == [row]
    assert main(command) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["study", "run", "mlp"], "needs --data"),
        (["study", "run", "mpl", "--data", "digits"], "did you mean 'mlp'?"),
        (["study", "run", "mlp", "--data", "digits", "--policies", "enkce"], "'encke'?"),
        (["study", "run", "mlp", "--data", "digits", "--seeds", "a"], "--seeds is 'a'"),
        (["study", "run", "gone.toml"], "gone.toml: No such file"),
        (["study", "run", "s.toml", "--epochs", "3"], "--epochs belong into s.toml"),
        (["study", "run", "mlp", "--data", "digits", "--jobs", "0"], "jobs is 0"),
        (["study", "report", "nowhere"], "holds no results"),
        (["train", "mlp", "--data", "digit", "--out", "a"], "did you mean 'digits'?"),
        (
            ["train", "mlp", "--data", "digits", "--out", "a", "--model-options", "hide=3"],
            "a key of model 'mlp'",
        ),
    ],
)
def test_what_cannot_be_run_is_one_line_and_exit_2(
    command: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_report_that_is_not_installed_says_where_the_numbers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.json").write_text('{"schema": 1, "cells": ["a"]}')
    (tmp_path / "results.jsonl").write_text('{"cell": "a"}\n')
    monkeypatch.setitem(sys.modules, "encke.study.report", None)
    assert main(["study", "report", str(tmp_path)]) == 2
    assert "no encke.study.report" in capsys.readouterr().err


ROW: dict[str, Any] = {
    "status": "done",
    "metric": {"name": "accuracy", "unit": "%", "final": 97.25},
    "memory": {"ratio": 18.3},
    "time": {"relative": 1.2},
    "seconds": 12.4,
}


def test_progress_is_a_line_a_cell_with_the_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with study_progress.watcher() as watcher:
        watcher.begin(cells=10, there=3)
        watcher.finish("mlp on digits", ROW, left=330)  # type: ignore[arg-type]
        failed = {"status": "failed", "error": {"type": "ValueError", "message": "no"}}
        watcher.finish("gpt on text", failed, left=None)  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines() == [
        "3 of 10 cells are there already",
        "[ 4/10] mlp on digits: accuracy 97.25 %, 18.3× smaller, step 1.20×, 12 s, 6 min left",
        "[ 5/10] gpt on text: failed, ValueError: no",
    ]


def test_a_terminal_gets_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with study_progress.watcher() as watcher:
        watcher.begin(cells=2, there=0)
        watcher.start("mlp on digits")  # type: ignore[arg-type]
        watcher.finish("mlp on digits", ROW, left=20)  # type: ignore[arg-type]
    assert "mlp on digits: accuracy 97.25 %" in capsys.readouterr().err
