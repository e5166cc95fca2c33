"""What K-FAC does on one of several ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from encke.wire.kfac import KFAC
from encke.wire.kfac.collectives import Alone, Exact

STEPS = 4


class Net(nn.Module):
    """Layers of several kinds, and one that only even ranks use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.convolution = nn.Conv1d(6, 4, 3, groups=2, padding="same")
        self.sometimes = nn.Linear(20, 20)
        self.head = nn.Linear(20, 5)

    def forward(self, tokens: Tensor, extra: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.attention(x, x, x)[0]
        x = self.convolution(x.mT).tanh().flatten(1)
        if bool(extra.any()):
            x = x.index_put((extra,), self.sometimes(x[extra]).tanh())
        y: Tensor = self.head(x)
        return y


def batch(rank: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(7, (8, 5), generator=generator)
    extra = torch.zeros(8, dtype=torch.bool)
    if rank % 2 == 0:
        extra[:4] = True
    return tokens, extra, torch.randint(5, (8,), generator=generator)


def build() -> Net:
    torch.manual_seed(0)
    return Net().double()


def options(method: str) -> dict[str, Any]:
    return {
        "fisher": "empirical",
        "method": method,
        "damping": 0.01,
        "factor_interval": 1,
        "inverse_interval": 2,
        "kl_clip": 1e-2,
    }


def joined(world: int, method: str) -> list[dict[str, Tensor]]:
    """One process that has every rank's examples in its batches."""
    model = build()
    pre = KFAC(model, comm=Alone(), **options(method))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(STEPS):
        parts = [batch(rank, step) for rank in range(world)]
        tokens, extra, target = (torch.cat(p) for p in zip(*parts, strict=True))
        optimizer.zero_grad()
        F.cross_entropy(model(tokens, extra), target).backward()
        pre.step()
        optimizer.step()
        found.append({n: p.grad.clone() for n, p in model.named_parameters()})
    return found


def on_ranks(rank: int, fractions: list[float]) -> dict[str, Any]:
    """The same over ranks for each worker fraction and method, and a loop with DDP."""
    found: dict[str, Any] = {"ddp": under_ddp(rank)}
    for fraction in fractions:
        for method in ("inverse", "eigen"):
            model = build()
            pre = KFAC(model, comm=Exact(), worker_fraction=fraction, **options(method))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            steps = []
            for step in range(STEPS):
                tokens, extra, target = batch(rank, step)
                optimizer.zero_grad()
                F.cross_entropy(model(tokens, extra), target).backward()
                for parameter in model.parameters():
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
                pre.step()
                optimizer.step()
                steps.append({n: p.grad.clone() for n, p in model.named_parameters()})
            held = sum(len(family.units) for family in pre._solutions.held)
            found[f"{method} {fraction}"] = {"steps": steps, "held": held}
    return found


def under_ddp(rank: int) -> list[Tensor]:
    """DDP and sampled Fisher, the default loop; the weights at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    outer = nn.parallel.DistributedDataParallel(model)
    pre = KFAC(outer, damping=0.01, factor_interval=2, inverse_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        output = outer(torch.randn(16, 6))
        pre.sample(output)
        F.cross_entropy(output, torch.randint(4, (16,))).backward()
        pre.step()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def through_the_wire(rank: int, fractions: list[float]) -> dict[str, Any]:
    """DDP with compressed gradients, K-FAC with compressed factors, on one queue."""
    from encke.wire import CompressedComm

    found: dict[str, Any] = {}
    for fraction in fractions:
        for share in (0.0, 0.1):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 4))
            outer = nn.parallel.DistributedDataParallel(model)
            comm = CompressedComm(tolerance=0.01)
            outer.register_comm_hook(comm, comm.hook)
            pre = KFAC(
                outer,
                comm=comm,
                damping=1e-2,
                factor_interval=1,
                inverse_interval=2,
                factor_error=share,
                worker_fraction=fraction,
            )
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(5):
                torch.manual_seed(100 * step + rank)
                optimizer.zero_grad()
                output = outer(torch.randn(64, 20))
                pre.sample(output)
                F.cross_entropy(output, torch.randint(4, (64,))).backward()
                pre.step()
                optimizer.step()
            means = [stack.mean.clone() for stack in pre._factors.stacks]
            weights = [p.detach().clone() for p in model.parameters()]
            found[f"{fraction} {share}"] = {"means": means, "weights": weights}
            comm.close()
    return found
