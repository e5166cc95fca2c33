"""One training in a directory of its own, which can be interrupted and gone on with.

metrics.jsonl   a line a step, and a line a point of the curve
checkpoint.pt   everything to go on from, written at every point
saved/          weights and optimizer state in files of the store, if asked for
wire.json       with several ranks, the plan by which they exchange gradients
study.json, cells/, results.jsonl
                the row at the end, as the results of a study of one cell
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from encke import atomic
from encke.errors import OutputError
from encke.study import results
from encke.study.cell import blank, measure, prepare
from encke.study.definition import Study
from encke.study.errors import StudyError
from encke.study.exchange import Wire, wrap
from encke.study.ranks import ALONE, Ranks
from encke.study.results import Row
from encke.study.stored import save_stored
from encke.study.training import Point, Training
from encke.wire.plan_file import plan_of_json, plan_to_json
from encke.wire.wrap import Wrapped


class Scalars(Protocol):
    """What is used of TensorBoard's `SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...


def train(
    study: Study,
    directory: Path,
    *,
    resume: bool = False,
    every: int | None = None,
    save_every: int | None = None,
    save_loss: float | None = None,
    scalars: Scalars | None = None,
    on_point: Callable[[Point], None] | None = None,
    ranks: Ranks = ALONE,
    wire: Wire | None = None,
    on_plan: Callable[[Wrapped], None] | None = None,
) -> Row:
    """Train the only cell of `study`; its row.

    resume    go on from the checkpoint in `directory`, if there is one
    every     steps between checkpoints; at every point of the curve unless given
    save_every, save_loss
              steps between files of the store, and the rise of the loss they may cost
    scalars   told every number too
    ranks     that train together; all of them must call it, the first reads and writes
    wire      how they exchange gradients
    on_plan   told how they are going to

    Only the first rank's row is one of results; the others return before it is measured.
    """
    (cell,) = study.cells
    begun = time.perf_counter()
    start = ranks.told(lambda: _start(study, directory, resume=resume))
    if start.row is not None:
        return start.row
    training = prepare(cell, ranks=ranks)
    if wire is not None:
        if wire.how == "auto" and wire.plan is None and start.plan is not None:
            plan = plan_of_json(start.plan)
            wire = replace(wire, plan=plan if plan.link.world == ranks.world else None)
        training.wrapped = wrap(training, wire)
        if ranks.first and on_plan is not None:
            on_plan(training.wrapped)
    if start.state is not None:
        training.load_state_dict(own_state(start.state, ranks))
    files = _Files(directory, ranks, scalars)
    files.begin(training)

    def step(point: Point) -> None:
        files.log.put("step", point)
        if every is not None and point["step"] % every == 0:
            files.save(training)
        if save_every is not None and point["step"] % save_every == 0 and ranks.first:
            save_stored(training, directory, loss=save_loss)

    def measured(point: Point) -> None:
        files.log.put("point", point)
        if every is None:
            files.save(training)
        if on_point is not None and ranks.first:
            on_point(point)

    training.run(on_step=step, on_point=measured)
    files.save(training)
    wrapped, training.wrapped = training.wrapped, None
    if wrapped is not None and wrapped.comm is not None:
        wrapped.comm.close()
    if not ranks.first:
        return blank(cell)
    row = measure(training)
    row |= {"seconds": time.perf_counter() - begun, "finished": results.now()}
    results.write_cell(directory, row)
    results.write_lines(directory, [row])
    return row


#: What a training writes. Files of another one by these names are not replaced.
_WRITTEN = ("checkpoint.pt", "metrics.jsonl", "results.jsonl", "study.json", "wire.json")


@dataclass(frozen=True, kw_only=True)
class _Start:
    """What a directory holds already: a finished row, a state to go on from, a plan."""

    row: Row | None = None
    state: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None


def _start(study: Study, directory: Path, *, resume: bool) -> _Start:
    (cell,) = study.cells
    checkpoint = directory / "checkpoint.pt"
    row = results.read_cell(directory, cell.id)
    if not resume and (checkpoint.exists() or row is not None):
        raise StudyError(
            f"{directory} holds a training already; give --resume to go on with it, or another "
            "--out"
        )
    there = [name for name in _WRITTEN if (directory / name).exists()]
    if there and results.cells_of(directory) != [cell.id]:
        raise StudyError(
            f"{directory} holds {', '.join(there)} of something else than {cell.id}, which "
            "would be replaced; give another --out, or the settings that it began with"
        )
    if row is not None and row["status"] == "done":
        return _Start(row=row)
    results.write_study(directory, study)
    if not checkpoint.exists():
        return _Start()
    plan = directory / "wire.json"
    return _Start(
        state=torch.load(checkpoint, weights_only=True),
        plan=json.loads(plan.read_text(encoding="utf-8")) if plan.exists() else None,
    )


#: Of a state, what ranks have each for itself.
_OWN = ("tape", "wire")


def own_state(state: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """The state of this rank; with more ranks than there were, that of one before it.

    >>> state = {"step": 4, "tape": 1, "ranks": [{"tape": 1}, {"tape": 2}]}
    >>> own_state(state, Ranks(rank=1, world=2))["tape"]
    2
    """
    parts = state.get("ranks") or [{}]
    found: dict[str, Any] = state | parts[ranks.rank % len(parts)]
    return found


class _Files:
    """What the first rank writes while a training runs; the others hand it their part."""

    def __init__(self, directory: Path, ranks: Ranks, scalars: Scalars | None) -> None:
        self._directory, self._ranks = directory, ranks
        self.log = _Log(directory / "metrics.jsonl" if ranks.first else None, scalars)

    def begin(self, training: Training) -> None:
        """Cut off what was logged beyond the training's state."""
        self.log.cut(training.step)
        self._write_plan(training)

    def save(self, training: Training) -> None:
        """The lines first: those beyond the checkpoint are cut off when it is loaded."""
        state = training.state_dict()
        parts = self._ranks.gathered({name: state[name] for name in _OWN})
        self.log.flush()
        if not self._ranks.first:
            return
        if len(parts) > 1:
            state["ranks"] = parts
        self._write_plan(training)
        with atomic.replacing(self._directory / "checkpoint.pt") as file:
            torch.save(state, file)

    def _write_plan(self, training: Training) -> None:
        plan = None if training.wrapped is None else training.wrapped.current_plan
        if plan is not None and self._ranks.first:
            text = json.dumps(plan_to_json(plan), indent=1)
            atomic.write_text(self._directory / "wire.json", text + "\n")


class _Log:
    """Lines of metrics.jsonl; without a path nothing is written."""

    def __init__(self, path: Path | None, scalars: Scalars | None) -> None:
        self._path, self._scalars = path, scalars
        self._lines: list[str] = []

    def put(self, kind: str, numbers: dict[str, Any]) -> None:
        if self._path is None:
            return
        line = {"kind": kind, **results.finite(numbers)}
        self._lines.append(json.dumps(line, allow_nan=False) + "\n")
        if self._scalars is not None:
            for name, value in numbers.items():
                if name != "step" and value is not None:
                    self._scalars.add_scalar(f"{kind}/{name}", value, numbers["step"])

    def flush(self) -> None:
        if self._path is None:
            return
        # Appended, not replaced: a line that is cut short is cut off when it is gone on with.
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(self._lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(
                f"cannot write {self._path}: {error.strerror or error}; --resume goes on from "
                "the last checkpoint"
            ) from error
        self._lines.clear()

    def cut(self, step: int) -> None:
        """Keep what was logged up to a step: what came after is going to come again."""
        if self._path is None or not self._path.exists():
            return
        kept = []
        for line in self._path.read_text(encoding="utf-8").splitlines(keepends=True):
            if not line.endswith("\n") or json.loads(line)["step"] > step:
                break
            kept.append(line)
        atomic.write_text(self._path, "".join(kept) if step else "")
