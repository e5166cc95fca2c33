"""How long a step takes beside a plain one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from encke.study.training import Training
from encke.study.zoo import Batch


def pace(training: Training, batches: Sequence[Batch], *, pairs: int) -> dict[str, Any]:
    """Times of steps and of plain ones in turn, as `time` of docs/study-results.md.

    In turn, so that whatever else the machine does slows both alike.
    """
    if training.cell.way.kind == "plain":
        seconds = [_step(training, batches[i % len(batches)]) for i in range(pairs)]
        found = statistics.median(seconds)
        return _row(found, found, 1.0, pairs)
    own: list[float] = []
    plain: list[float] = []
    for i in range(pairs + 1):
        batch = batches[i % len(batches)]
        for is_plain in (False, True) if i % 2 else (True, False):
            (plain if is_plain else own).append(_step(training, batch, plain=is_plain))
    ratios = [a / b for a, b in zip(own[1:], plain[1:], strict=True)]  # the first warms up
    medians = statistics.median(own[1:]), statistics.median(plain[1:])
    return _row(*medians, statistics.median(ratios), pairs)


def _row(own: float, plain: float, relative: float, pairs: int) -> dict[str, Any]:
    return {
        "step_seconds": own,
        "plain_step_seconds": plain,
        "relative": relative,
        "pairs": pairs,
    }


def _step(training: Training, batch: Batch, *, plain: bool = False) -> float:
    with training.fitted.plain() if plain else nullcontext():
        begun = time.perf_counter()
        loss = training.forward(batch, plain=plain)
        loss.backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()
        training.optimizer.zero_grad(set_to_none=False)
        return time.perf_counter() - begun
