"""Lazy logits on two ranks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

from encke.head.lazy import LazyHead, LazyLogits

CLASSES = 5000


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(CLASSES, 16)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(16, CLASSES, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.body(self.embedding(ids)))
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, CLASSES), ids[:, 1:].reshape(-1))
        return {"loss": loss, "logits": logits}


def _rank(rank: int, folder: str, worker: Callable[[int], Any]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=50),
    )
    torch.save(worker(rank), Path(folder) / f"{rank}.pt")
    dist.barrier()
    # Taking down gloo's threads after FSDP2 aborts now and then, also without Encke.
    os._exit(0)


def run(worker: Callable[[int], Any]) -> list[Any]:
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=_rank, args=(n, folder, worker)) for n in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(100)
        for process in ranks:
            if process.is_alive():
                process.kill()
        assert [process.exitcode for process in ranks] == [0, 0]
        return [torch.load(Path(folder) / f"{n}.pt") for n in range(2)]


def _gradients(model: nn.Module, rank: int, *, lazy: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(rank)
    ids = torch.randint(0, CLASSES, (8, 64), generator=generator)
    with LazyHead() if lazy else torch.enable_grad():
        out = model(ids)
        kind = type(out["logits"]) is LazyLogits and not out["logits"].is_computed
        out["loss"].backward()
    full = {
        n: getattr(p.grad, "full_tensor", lambda p=p: p.grad)()
        for n, p in model.named_parameters()
        if p.grad is not None
    }
    return {"lazy": kind, "logits": out["logits"].detach().sum(), "gradients": full}


def data_parallel(rank: int) -> dict[str, Any]:
    found = {}
    for unused in (False, True):
        for lazy in (True, False):
            net = Net()
            if not unused:
                del net.unused
            model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=unused)
            found[f"{unused} {lazy}"] = _gradients(model, rank, lazy=lazy)
    return found


def fully_sharded(rank: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    found = {}
    mesh = init_device_mesh("cpu", (2,))
    for lazy in (True, False):
        net = Net()
        del net.unused
        fully_shard(net.body, mesh=mesh)
        fully_shard(net, mesh=mesh)
        found[f"{lazy}"] = _gradients(net, rank, lazy=lazy)
    return found


@pytest.mark.slow
def test_data_parallel_training_gets_the_same_gradients() -> None:
    for rank in run(data_parallel):
        assert rank["False True"]["lazy"]
        for unused in (False, True):
            ours, theirs = rank[f"{unused} True"], rank[f"{unused} False"]
            torch.testing.assert_close(ours["gradients"], theirs["gradients"])
            torch.testing.assert_close(ours["logits"], theirs["logits"])


@pytest.mark.slow
def test_sharded_weights_are_not_lazy_and_get_the_same_gradients() -> None:
    for rank in run(fully_sharded):
        assert not rank["True"]["lazy"]
        torch.testing.assert_close(rank["True"]["gradients"], rank["False"]["gradients"])
