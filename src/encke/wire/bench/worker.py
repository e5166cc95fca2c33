"""One rank of the benchmark: trains with each contestant in turn and times the steps."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from encke.wire.bench.contestants import CONTESTANTS, Contestant
from encke.wire.bench.links import INTERFACE
from encke.wire.bench.workload import Batches, loss_of, network
from encke.wire.comm import CompressedComm
from encke.wire.noise import NoiseRule

_LARGE_BUCKET = 10_000  # MB


class Training:
    """DDP with one contestant's hook."""

    def __init__(self, contestant: Contestant, megabytes: float, rank: int, batch: int) -> None:
        torch.manual_seed(0)
        options: dict[str, Any] = {"gradient_as_bucket_view": True}
        if contestant.whole:
            options["bucket_cap_mb"] = _LARGE_BUCKET
        self.ddp = nn.parallel.DistributedDataParallel(network(megabytes), **options)
        self.batches = Batches(rank, batch)
        self.comm = contestant.register(self.ddp, self.batches.next())
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.02)
        self.processor: list[float] = []
        self.sent: list[int] = []

    def step(self, *, exchange: bool = True) -> float:
        """Seconds of forward, backward and exchange, all ranks starting together; of the
        slowest rank."""
        batch = self.batches.next()
        dist.barrier()
        begin, processor, sent = time.perf_counter(), time.process_time(), link_bytes()
        self.optimizer.zero_grad()
        if exchange:
            loss_of(self.ddp, batch).backward()  # type: ignore[no-untyped-call]
        else:
            with self.ddp.no_sync():
                loss_of(self.ddp, batch).backward()  # type: ignore[no-untyped-call]
        seconds = torch.tensor([time.perf_counter() - begin])
        self.processor.append(time.process_time() - processor)
        self.sent.append(link_bytes() - sent)
        self.optimizer.step()
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return float(seconds)


def measure(names: list[str], job: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    """Times of steps, all contestants in turn so that what disturbs one disturbs all."""
    trainings = {
        name: Training(CONTESTANTS[name], job["megabytes"], rank, job["batch"])
        for name in names
    }
    for name, training in trainings.items():
        for _ in range(CONTESTANTS[name].warm_up):
            training.step()
    for training in trainings.values():
        training.processor.clear()
        training.sent.clear()
    times: dict[str, list[float]] = {name: [] for name in names}
    bystander = Training(CONTESTANTS["none"], job["megabytes"], rank, job["batch"])
    bystander.step()
    bystander.processor.clear()
    alone = []
    for _ in range(job["steps"]):
        for name, training in trainings.items():
            times[name].append(training.step())
        alone.append(bystander.step(exchange=False))
    found = []
    for name, training in trainings.items():
        row: dict[str, Any] = {
            "contestant": name,
            "remark": CONTESTANTS[name].remark,
            "step_ms": 1e3 * statistics.median(times[name]),
            "best_ms": 1e3 * min(times[name]),
            "alone_ms": 1e3 * statistics.median(alone),
            "best_alone_ms": 1e3 * min(alone),
            "processor_ms": 1e3 * statistics.median(training.processor),
            "processor_alone_ms": 1e3 * statistics.median(bystander.processor),
            "sent_mb": statistics.median(training.sent) / 1e6,
            "steps": job["steps"],
        }
        if training.comm is not None:
            row["codec"] = training.comm.settings.codec
            row |= _certificate(training)
            training.comm.close()
        found.append(row)
    return found


def link_bytes() -> int:
    """Bytes that have left by this namespace's link, headers included."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counters.split()[8])
    return 0


def _certificate(training: Training) -> dict[str, Any]:
    """One more step, held against an exact all-reduce; raises if it breaks its promise."""
    comm = training.comm
    assert isinstance(comm, CompressedComm)
    worst, variance, values = 0.0, 0.0, 0

    class Listening(NoiseRule):
        def observes(self, *, step: int) -> bool:
            return True

        def observe(self, seen: Any) -> None:
            nonlocal worst, variance, values
            if seen.bound and seen.largest is not None:
                worst = max(worst, seen.largest / seen.bound)
                expected = seen.bound**2 / (3 * seen.segment.world)
                variance += seen.segment.values * seen.error / expected
                values += seen.segment.values

    rule = comm.gradients.policy
    listening = Listening(rule.tolerance)  # type: ignore[attr-defined]
    listening.load_state_dict(rule.state_dict())
    comm.gradients.policy, comm.gradients.check = listening, 1
    training.step()
    return {
        "largest_error_of_bound": worst,
        "deviation_of_promised": (variance / values) ** 0.5 if values else 0.0,
    }


def joined(job: dict[str, Any]) -> int:
    """Join the group that the job names; this process's rank in it."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=job["init_method"],
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=120),
    )
    return rank


def report(work: Callable[[dict[str, Any], int], list[dict[str, Any]]]) -> None:
    """Do `work(job, rank)` on the job that the command line names; rank 0 writes its rows."""
    job = json.loads(Path(sys.argv[1]).read_text())
    rank = joined(job)
    found = work(job, rank)
    if rank == 0:
        Path(job["results"]).write_text("".join(json.dumps(row) + "\n" for row in found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    report(lambda job, rank: measure(job["contestants"], job, rank))
