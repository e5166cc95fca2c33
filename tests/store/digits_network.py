"""The small network that the tests of the store train."""

from __future__ import annotations

from torch import nn


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 64, 48),
        nn.ReLU(),
        nn.Linear(48, 10),
    )
