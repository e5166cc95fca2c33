"""One rank of the tuner's examination: what it predicts, and what steps then take."""

from __future__ import annotations

import statistics
import time
from typing import Any

from encke.wire.bench.contestants import CONTESTANTS, Contestant, ours
from encke.wire.bench.worker import Training, report
from encke.wire.bench.workload import Batches, loss_of, network
from encke.wire.plan import EXACT, Choice
from encke.wire.tuner import tune


def contestant_for(choice: Choice) -> Contestant:
    """Who exchanges as the choice says."""
    return CONTESTANTS["none"] if choice == EXACT else ours(choice.tolerance, choice.codec)


def examine(job: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    """A row for each choice: predicted and measured milliseconds of a step."""
    batch = Batches(rank, job["batch"]).next()
    begin = time.perf_counter()
    plan = tune(network(job["megabytes"]), batch, tolerance=job["tolerance"], loss=loss_of)
    tuning = time.perf_counter() - begin
    rows = plan.rows()
    trainings = {
        row.choice: Training(contestant_for(row.choice), job["megabytes"], rank, job["batch"])
        for row in rows
    }
    for training in trainings.values():
        for _ in range(3):
            training.step()
    times: dict[Choice, list[float]] = {choice: [] for choice in trainings}
    steps = rounds(job, sum(row.seconds for row in rows))
    order = list(trainings)
    for _ in range(steps):
        for choice in order:
            times[choice].append(trainings[choice].step())
        order.append(order.pop(0))  # what comes before a step is not always the same
    return [
        {
            "codec": row.choice.codec,
            "tolerance": row.choice.tolerance,
            "predicted_ms": 1e3 * row.seconds,
            "measured_ms": 1e3 * statistics.median(times[row.choice]),
            "chosen": row.choice == plan.chosen,
            "tuning_s": tuning,
            "alone_ms": 1e3 * plan.workload.seconds,
            "link_mbit": 8e-6 * plan.link.exchange.bandwidth,
            "megabytes": job["megabytes"],
            "steps": steps,
        }
        for row in rows
    ]


def rounds(job: dict[str, Any], seconds: float) -> int:
    """How often all choices, which together take `seconds`, are tried: more if they are fast.

    >>> rounds({"steps": 5, "most_steps": 30, "seconds": 20}, 2.0)
    10
    """
    often = min(int(job["most_steps"]), int(job["seconds"] / seconds))
    return max(int(job["steps"]), often)


if __name__ == "__main__":
    report(examine)
