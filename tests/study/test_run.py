"""Studies go on where they stopped, and one cell's end is not another's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_cells import small_study, without_timings

from encke.study import results
from encke.study.cells import Cell
from encke.study.errors import StudyError
from encke.study.run import Times, run
from encke.study.schema import problems

PATIENCE = 1500  # seconds, for machines that are busy with other things

STUDY = """
policies = ["plain", "encke"]
[models.mlp]
hidden = 96
[data.digits]
[training]
steps = 6
points = 2
pairs = 1
train = 512
test = 64
"""

OWN = """
import os, signal
import torch

def build(seed):
    if seed == 1:
        raise ValueError("seed 1 does not work here")
    if seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.nn.Linear(8, 2)

def loaders():
    x = torch.randn(64, 8)
    return [(x, (x[:, 0] > 0).long())], [(x, (x[:, 0] > 0).long())]
"""


class Heard:
    def __init__(self) -> None:
        self.began: tuple[int, int] | None = None
        self.started: list[str] = []
        self.finished: list[tuple[str, str, bool]] = []

    def begin(self, *, cells: int, there: int) -> None:
        self.began = cells, there

    def start(self, cell: Cell) -> None:
        self.started.append(cell.id)

    def finish(self, cell: Cell, row: dict[str, Any], *, left: float | None) -> None:
        self.finished.append((cell.id, row["status"], left is not None))


@pytest.mark.slow
def test_failed_and_killed_cells_are_rows_and_stop_no_other(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    study = small_study(
        "plain",
        models=["own.py:build"],
        data=["own.py:loaders"],
        seeds=[1, 2, 0],
        training={"steps": 2, "pairs": 1},
        folder=tmp_path,
    )
    heard = Heard()
    out = tmp_path / "results"
    outcome = run(study, out, jobs=2, watcher=heard)
    raised, killed, done = (results.read_cell(out, cell.id) for cell in study.cells)
    assert raised is not None
    assert killed is not None
    assert done is not None
    assert raised["error"]["message"] == "seed 1 does not work here"
    assert killed["error"]["type"] == "ProcessEnded"
    assert "signal 9" in killed["error"]["message"]
    assert done["status"] == "done"
    assert [problems(row) for row in (raised, killed, done)] == [[], [], []]
    assert (outcome.ran, len(outcome.failed), outcome.missing) == (3, 2, [])
    assert heard.began == (3, 0)
    assert len(heard.finished) == 3
    # Again: nothing is left to do. With retry, those that failed.
    assert run(study, out).ran == 0
    (tmp_path / "own.py").write_text(OWN.replace("seed == 1", "seed == 11"))
    again = run(study, out, retry=True, jobs=2)
    assert again.ran == 2
    assert again.failed == [study.cells[1].id]


def table(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "results.jsonl").read_text().splitlines()
    return [without_timings(json.loads(line)) for line in lines]


def start(study: Path, out: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "encke", "study", "run", str(study), "--out", str(out)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def wait_for(happens: Callable[[], Any]) -> None:
    begun = time.monotonic()
    while not happens():
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.02)


@pytest.mark.slow
def test_killed_at_any_moment_and_started_again_it_gives_the_same_table(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    whole, broken = tmp_path / "undisturbed", tmp_path / "broken"
    process = start(study, whole)
    _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said.count("smaller")) == (0, 2), said
    for rows in (0, 1):  # killed with so many cells done, in the midst of the next one
        process = start(study, broken)
        wait_for(lambda rows=rows: len(list(broken.glob("cells/*.json"))) >= rows)  # type: ignore[misc]
        wait_for(lambda process=process: _children(process.pid))  # type: ignore[misc]
        time.sleep(0.5)
        cells = _children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_for(lambda cells=cells: not any(map(_runs, cells)))  # type: ignore[misc]
    (broken / "cells" / ".half.json.0.part").write_text('{"schema": 1, "cel')
    process = start(study, broken)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert table(broken) == table(whole)
    assert not list(broken.glob("**/*.part"))


@pytest.mark.slow
def test_ctrl_c_ends_the_cells_and_says_how_to_go_on(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(STUDY.replace("steps = 6", "steps = 100000"))
    # A test run in the background of a shell ignores Ctrl-C, and its children would too.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = start(study, tmp_path / "out", stdout=subprocess.DEVNULL)
    finally:
        signal.signal(signal.SIGINT, ours)
    try:
        wait_for(lambda: _children(process.pid))
        cells = _children(process.pid)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "2 cells are left; run it again to go on" in said
    assert "Traceback" not in said
    wait_for(lambda: not any(map(_runs, cells)))


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(child) for child in text.split()]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_two_runs_do_not_share_a_directory(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StudyError, match="another run is under way"):
            run(small_study("plain"), tmp_path)


def test_results_are_read_with_what_is_missing(tmp_path: Path) -> None:
    study = small_study("plain", "encke", seeds=[0, 1])
    with pytest.raises(StudyError, match="holds no results"):
        results.read(tmp_path)
    inside = tmp_path / "only"
    results.write_study(inside, study)
    ids = [cell.id for cell in study.cells]
    results.write_cell(inside, {"cell": ids[1], "schema": 1, "loss": float("nan")})
    found = results.read(tmp_path)
    assert found.rows == [{"cell": ids[1], "schema": 1, "loss": None}]
    assert found.missing == [ids[0], *ids[2:]]
    assert found.study["name"] == "small"
    created = found.study["created"]
    results.write_lines(inside, found.rows)
    results.cell_path(inside, ids[1]).unlink()
    (inside / "cells").rmdir()
    assert results.read(inside).rows == found.rows, "the lines stand for the cells"
    results.write_study(inside, study)
    assert results.read(inside).study["created"] == created


def test_time_left_is_told_from_cells_of_the_same_kind() -> None:
    (mlp,) = small_study("plain").cells
    (other,) = small_study("plain", models={"large": {"network": "mlp"}}).cells
    times = Times()
    assert times.left([mlp], jobs=1) is None
    times.add(mlp, 10)
    times.add(other, 30)
    assert times.left([mlp, other, other], jobs=2) == (10 + 30 + 30) / 2
