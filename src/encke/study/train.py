"""One training in a directory of its own, which can be interrupted and gone on with.

metrics.jsonl   a line a step, and a line a point of the curve
checkpoint.pt   everything to go on from, written at every point
study.json, cells/, results.jsonl
                the row at the end, as the results of a study of one cell
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from encke.study import results
from encke.study.cell import measure, prepare
from encke.study.definition import Study
from encke.study.errors import StudyError
from encke.study.results import Row
from encke.study.training import Point, Training


class Scalars(Protocol):
    """What is used of TensorBoard's `SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...


def train(
    study: Study,
    directory: Path,
    *,
    resume: bool = False,
    every: int | None = None,
    scalars: Scalars | None = None,
    on_point: Callable[[Point], None] | None = None,
) -> Row:
    """Train the only cell of `study`; its row.

    resume    go on from the checkpoint in `directory`, if there is one
    every     steps between checkpoints; at every point of the curve unless given
    scalars   told every number too
    """
    (cell,) = study.cells
    checkpoint = directory / "checkpoint.pt"
    row = results.read_cell(directory, cell.id)
    if not resume and (checkpoint.exists() or row is not None):
        raise StudyError(
            f"{directory} holds a training already; give --resume to go on with it, or another "
            "--out"
        )
    if row is not None and row["status"] == "done":
        return row
    begun = time.perf_counter()
    results.write_study(directory, study)
    training = prepare(cell)
    log = _Log(directory / "metrics.jsonl", scalars)
    if checkpoint.exists():
        training.load_state_dict(torch.load(checkpoint, weights_only=True))
    log.cut(training.step)

    def step(point: Point) -> None:
        log.put("step", point)
        if every is not None and point["step"] % every == 0:
            _save(training, checkpoint, log)

    def measured(point: Point) -> None:
        log.put("point", point)
        if every is None:
            _save(training, checkpoint, log)
        if on_point is not None:
            on_point(point)

    training.run(on_step=step, on_point=measured)
    _save(training, checkpoint, log)
    row = measure(training)
    row |= {"seconds": time.perf_counter() - begun, "finished": results.now()}
    results.write_cell(directory, row)
    results.write_lines(directory, [row])
    return row


def _save(training: Training, path: Path, log: _Log) -> None:
    """The lines first: those beyond the checkpoint are cut off when it is loaded."""
    log.flush()
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            torch.save(training.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class _Log:
    def __init__(self, path: Path, scalars: Scalars | None) -> None:
        self._path, self._scalars = path, scalars
        self._lines: list[str] = []

    def put(self, kind: str, numbers: dict[str, Any]) -> None:
        line = {"kind": kind, **results.finite(numbers)}
        self._lines.append(json.dumps(line, allow_nan=False) + "\n")
        if self._scalars is not None:
            for name, value in numbers.items():
                if name != "step" and value is not None:
                    self._scalars.add_scalar(f"{kind}/{name}", value, numbers["step"])

    def flush(self) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(self._lines))
            file.flush()
            os.fsync(file.fileno())
        self._lines.clear()

    def cut(self, step: int) -> None:
        """Keep what was logged up to a step: what came after is going to come again."""
        if not self._path.exists():
            return
        kept = []
        for line in self._path.read_text(encoding="utf-8").splitlines(keepends=True):
            if not line.endswith("\n") or json.loads(line)["step"] > step:
                break
            kept.append(line)
        results.write_atomically(self._path, "".join(kept) if step else "")
