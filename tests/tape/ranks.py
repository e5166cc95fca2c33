"""Trainings on several ranks, each in a process of its own, that return their gradients."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

import encke

#: Seconds after which a rank that does not answer is given up.
PATIENCE = 100


def run_on_ranks(worker: Callable[..., Any], *arguments: Any, world: int = 2) -> list[Any]:
    """What `worker(rank, *arguments)` returned on each rank of a gloo group."""
    context = mp.get_context("spawn")  # a child forked after OpenMP has run hangs
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, world, folder, worker, arguments))
            for rank in range(world)
        ]
        try:
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(PATIENCE)
            codes = [process.exitcode for process in ranks]
            if any(codes):
                raise RuntimeError(f"ranks ended with {codes}; None is one that hung")
        finally:
            for process in ranks:
                if process.is_alive():
                    process.kill()
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(world)]


def _rank(
    rank: int, world: int, folder: str, worker: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=PATIENCE / 2),
    )
    try:
        torch.save(worker(rank, *arguments), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(48, 64), nn.LayerNorm(64), nn.GELU())
        self.second = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1))
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.second(self.first(x)))
        return result


def _batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(96, 48, generator=generator), torch.randint(
        0, 10, (96,), generator=generator
    )


Steps = list[dict[str, Tensor]]


def _train(rank: int, model: nn.Module, whole: Callable[[Tensor], Tensor]) -> Steps:
    """The gradients of a few steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: Steps = []
    for step in range(4):
        torch.manual_seed(1000 + 10 * step + rank)
        x, target = _batch(rank, step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), target).backward()
        found.append({n: whole(p.grad).clone() for n, p in model.named_parameters()})
        optimizer.step()
    return found


def _tape(model: nn.Module, how: str) -> encke.Tape | None:
    if how == "plain":
        return None
    policy = encke.Fixed(encke.Lossless()) if how == "lossless" else None
    return encke.attach(model, policy=policy)


def data_parallel(rank: int) -> dict[str, Any]:
    """DDP without a tape, with one on the inner model, on the wrapper, with the controller."""
    found = {}
    for how in ("plain", "lossless inside", "lossless outside", "controller"):
        torch.manual_seed(0)
        inner = Net()
        outer = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.01)
        tape = _tape(outer if how.endswith("outside") else inner, how.split()[0])
        found[how] = {"steps": _train(rank, outer, lambda g: g), **_account(tape)}
    return found


def fully_sharded(rank: int) -> dict[str, Any]:
    """FSDP2 over layers and root, in float32 and with bfloat16 for the computation."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    found = {}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for precision in (torch.float32, torch.bfloat16):
        for how in ("plain", "lossless", "controller"):
            torch.manual_seed(0)
            model = Net()
            options: dict[str, Any] = {"mesh": mesh}
            if precision is torch.bfloat16:
                options["mp_policy"] = MixedPrecisionPolicy(param_dtype=precision)
            for layer in (model.first, model.second):
                fully_shard(layer, **options)
            fully_shard(model, **options)
            tape = _tape(model, how)
            steps = _train(rank, model, lambda g: g.full_tensor())
            found[f"{how} {precision}"] = {"steps": steps, **_account(tape)}
    return found


def _account(tape: encke.Tape | None) -> dict[str, Any]:
    if tape is None:
        return {}
    return {
        "stored": tape.ledger.stored_peak,
        "plain": tape.ledger.plain_peak,
        "held": tape.stored_bytes,
        "shapes": {r.shape for r in tape.records if r.how != "exact"},
    }
