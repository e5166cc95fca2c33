"""A training whose gradients have a given size, and batches that differ between ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FEATURES = 1024
_CLASSES = 1000


def network(megabytes: float) -> nn.Sequential:
    """A perceptron with three square hidden layers and `megabytes` of float32 gradients.

    >>> round(sum(p.numel() for p in network(42).parameters()) * 4 / 1e6, 1)
    42.0
    """
    values = megabytes * 1e6 / 4
    # 3 h² + (features + classes + a few) h = values
    linear = _FEATURES + _CLASSES + 14
    width = max(8, round((-linear + (linear**2 + 12 * values) ** 0.5) / 6))
    layers: list[nn.Module] = [nn.Linear(_FEATURES, width)]
    for _ in range(3):
        layers += [nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.LayerNorm(width), nn.GELU(), nn.Linear(width, _CLASSES))


class Batches:
    """Inputs with labels that a fixed matrix gives, different on every rank and step."""

    def __init__(self, rank: int, size: int) -> None:
        teacher = torch.Generator().manual_seed(0)
        self._teacher = torch.randn(_FEATURES, _CLASSES, generator=teacher)
        self._own = torch.Generator().manual_seed(1 + rank)
        self._size = size

    def next(self) -> tuple[Tensor, Tensor]:
        x = torch.randn(self._size, _FEATURES, generator=self._own)
        return x, (x @ self._teacher).argmax(1)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, target = batch
    return F.cross_entropy(model(x), target)
