"""A small network, its batches, and what K-FAC made of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encke.wire.kfac import KFAC


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def batch(n: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(4, (n,), generator=generator)


def empirical(model: nn.Module, **options: Any) -> KFAC:
    settings = {"fisher": "empirical", "damping": 0.01, "kl_clip": None, "factor_interval": 1}
    return KFAC(model, **(settings | options))


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def factors(pre: KFAC) -> list[Tensor]:
    return [
        side
        for unit in pre.state_dict()["factors"].values()
        for side in list(unit.values())[1:]
    ]


def after_one_step(x: Tensor, target: Tensor, **options: Any) -> list[Tensor]:
    model = network()
    pre = empirical(model, **options)
    F.cross_entropy(model(x), target).backward()
    pre.step()
    return gradients(model)
