"""One cell of a study: a training from a pinned seed, measured, as a row.

`python -m encke.study.cell DIRECTORY` reads the cell as JSON from its standard input, runs
it, and writes its row. The input stays open: when it ends, whoever asked is gone, and the
process ends too.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import time
import traceback
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from encke.study import results
from encke.study.cells import Cell
from encke.study.environment import environment
from encke.study.measure.gradients import compare_gradients
from encke.study.measure.kept import codec_shares, layers
from encke.study.measure.pace import pace
from encke.study.measure.timeline import trace_kept, trace_plain
from encke.study.ranks import ALONE, Ranks
from encke.study.results import Row
from encke.study.subject import Subject, subject_of
from encke.study.training import Training
from encke.study.zoo import Batch

_CHECKED = 3  # batches over which predicted and measured errors are averaged


def run(cell: Cell) -> Row:
    """The row of a cell: done, or failed with its error."""
    begun = time.perf_counter()
    try:
        training = prepare(cell)
        training.run()
        row = measure(training)
    except Exception as error:
        row = failed(cell, error)
    row["seconds"] = time.perf_counter() - begun
    row["finished"] = results.now()
    return row


def prepare(cell: Cell, *, ranks: Ranks = ALONE) -> Training:
    """A cell's training, ready to start; on every one of several ranks."""
    random.seed(cell.seed)
    np.random.seed(cell.seed)  # noqa: NPY002 - a user's own data may draw from it
    return Training(cell, subject_of(cell), ranks=ranks)


def measure(training: Training) -> Row:
    """The row of a training that has ended. Its weights change: save them before."""
    cell, subject, tape = training.cell, training.subject, training.fitted.tape
    batches = _batches(subject)
    plain = trace_plain(training, batches[0])
    kept = trace_kept(training, batches[0])
    row = blank(cell) | {"status": "done", "environment": environment()}
    row["training"] |= {
        "steps": training.steps,
        "parameters": sum(p.numel() for p in training.network.parameters()),
    }
    ratio = plain.peak / kept.peak if kept.peak else None
    row["curve"] = [
        point if tape is not None else point | {"ratio": ratio} for point in training.curve
    ]
    last = training.curve[-1]
    row["metric"] = {
        "name": subject.metric.name,
        "unit": subject.metric.unit,
        "better": subject.metric.better,
        "final": last["metric"],
        "best": subject.metric.best([point["metric"] for point in training.curve]),
    }
    row["loss"] = {"train": last["train_loss"], "test": last["test_loss"]}
    row["timeline"] = {
        "plain": plain.points,
        "kept": kept.points,
        "forward_end": {"plain": plain.forward_end, "kept": kept.forward_end},
    }
    if tape is not None:
        row["layers"] = layers(tape)
        row["codecs"] = codec_shares(row["layers"])
        row["gradient_error"], row["error_histogram"] = compare_gradients(
            training, tape, batches[:_CHECKED]
        )
    row["time"] = pace(training, batches, pairs=cell.training.pairs)
    row["memory"] = {
        "plain_bytes": plain.peak,
        "stored_bytes": kept.peak,
        "ratio": ratio,
        "peak_bytes": training.peak,
    }
    return row


def _batches(subject: Subject) -> list[Batch]:
    """A few batches to measure with, the same whatever was trained before."""
    return list(islice(iter(subject.train(0)), _CHECKED + 1))


def blank(cell: Cell) -> Row:
    """A row that only says what was asked for: every key is there."""
    settings = cell.training
    return {
        "schema": results.SCHEMA,
        "cell": cell.id,
        "model": cell.model.name,
        "model_options": cell.model.given_options(),
        "data": cell.data.name,
        "data_options": cell.data.given_options(),
        "policy": cell.way.label,
        "policy_kind": cell.way.kind,
        "policy_options": dict(cell.way.options),
        "seed": cell.seed,
        "status": "failed",
        "error": None,
        "environment": None,
        "training": {
            "batch": settings.batch,
            "steps": settings.steps,
            "epochs": settings.epochs,
            "optimizer": settings.optimizer,
            "rate": settings.rate,
            "parameters": None,
        },
        "metric": None,
        "loss": None,
        "curve": None,
        "memory": None,
        "time": None,
        "timeline": None,
        "layers": None,
        "gradient_error": None,
        "error_histogram": None,
        "codecs": None,
        "seconds": None,
        "finished": None,
    }


def failed(cell: Cell, error: BaseException) -> Row:
    """The row of a cell that raised."""
    return blank(cell) | {
        "error": {
            "type": type(error).__name__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
        },
        "finished": results.now(),
    }


def killed(cell: Cell, code: int, said: str) -> Row:
    """The row of a cell whose process ended without one."""
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return blank(cell) | {
        "error": {
            "type": "ProcessEnded",
            "message": f"the cell's process ended with {how} before it wrote a row",
            "traceback": said,
        },
        "finished": results.now(),
    }


def _end_with(stream: int) -> None:
    """Wait in a thread for the end of an open file, then end this process at once."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(stream, 4096):
                pass
        os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def main() -> None:
    """Run the cell that is on the standard input's first line."""
    cell = Cell.of_json(json.loads(sys.stdin.readline()))
    _end_with(sys.stdin.fileno())
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads:
        torch.set_num_threads(int(threads))
    results.write_cell(Path(sys.argv[1]), run(cell))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to do, and torch takes its time to take itself apart


if __name__ == "__main__":
    main()
