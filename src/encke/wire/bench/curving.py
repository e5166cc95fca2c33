"""One rank of the curvature plan's examination: predicted and measured steps with K-FAC."""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from encke.wire.bench.tuning import rounds
from encke.wire.bench.worker import report
from encke.wire.bench.workload import Batches, loss_of, network
from encke.wire.comm import CompressedComm
from encke.wire.curvature import CurvatureRow, plan_curvature
from encke.wire.curvature_tuner import measure_curvature
from encke.wire.kfac.preconditioner import KFAC, UncoveredWarning
from encke.wire.plan import Plan
from encke.wire.tuner import tune


class Curved:
    """DDP with K-FAC, as one row of a curvature plan says."""

    def __init__(self, row: CurvatureRow, plan: Plan, job: dict[str, Any], rank: int) -> None:
        torch.manual_seed(0)
        self.ddp = nn.parallel.DistributedDataParallel(
            network(job["megabytes"]), gradient_as_bucket_view=True
        )
        self.batches = Batches(rank, job["batch"])
        self.comm = CompressedComm(plan=plan, names=self.ddp.module)
        self.ddp.register_comm_hook(self.comm, self.comm.hook)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.02)
        options: dict[str, Any] = {**row.options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncoveredWarning)
            self.pre = KFAC(self.ddp, comm=self.comm, damping=1e-2, **options)

    def period(self, steps: int) -> float:
        """Mean seconds of so many steps, of the slowest rank, without the optimizer's."""
        total = 0.0
        for _ in range(steps):
            x, target = self.batches.next()
            dist.barrier()
            begin = time.perf_counter()
            self.optimizer.zero_grad()
            output = self.ddp(x)
            self.pre.sample(output)
            F.cross_entropy(output, target).backward()  # type: ignore[no-untyped-call]
            self.pre.step()
            seconds = torch.tensor([time.perf_counter() - begin])
            self.optimizer.step()
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            total += float(seconds)
        return total / steps


def examine(job: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    """A row for each fraction, with compressed and with exact factors."""
    model, batch = network(job["megabytes"]), Batches(rank, job["batch"]).next()
    begin = time.perf_counter()
    plan = tune(model, batch, tolerance=job["tolerance"], loss=loss_of)
    work = measure_curvature(
        model,
        batch,
        loss="cross_entropy",
        forward=lambda m, pair: m(pair[0]),
        group=None,
        codec="entropy" if not plan.compresses else plan.chosen.codec,
        options={"damping": 1e-2},
    )
    tuning = time.perf_counter() - begin
    intervals = tuple(job["intervals"])
    found = plan_curvature(work, plan, intervals=[intervals])
    fastest = min(found.rows, key=lambda row: row.seconds)
    trainings = {row: Curved(row, plan, job, rank) for row in found.rows}
    for training in trainings.values():
        training.period(2 * intervals[1])  # early steps renew more often
    times: dict[CurvatureRow, list[float]] = {row: [] for row in trainings}
    often = rounds(job, intervals[1] * sum(row.seconds for row in found.rows))
    for _ in range(often):
        for row, training in trainings.items():
            times[row].append(training.period(intervals[1]))
    for training in trainings.values():
        training.comm.close()
    return [
        {
            "fraction": row.fraction,
            "factors": "compressed" if row.compressed else "exact",
            "codec": plan.chosen.codec,
            "tolerance": plan.chosen.tolerance,
            "factor_interval": row.factor_interval,
            "inverse_interval": row.inverse_interval,
            "predicted_ms": 1e3 * row.seconds,
            "measured_ms": 1e3 * statistics.median(times[row]),
            "chosen": row == fastest,
            "alone_ms": 1e3 * plan.workload.seconds,
            "link_mbit": 8e-6 * plan.link.exchange.bandwidth,
            "tuning_s": tuning,
            "megabytes": job["megabytes"],
            "steps": often * intervals[1],
        }
        for row in found.rows
    ]


if __name__ == "__main__":
    report(examine)
