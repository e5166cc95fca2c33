"""Linear layers with ReLU between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, nn

from encke.study.zoo.batch import Batch
from encke.study.zoo.model import Family
from encke.study.zoo.samples import class_labels, cross_entropy


def mlp(
    *, features: int = 64, hidden: int = 256, depth: int = 2, classes: int = 10
) -> nn.Sequential:
    """`depth` hidden layers. Inputs of any shape are flattened; the defaults fit digits."""
    layers: list[nn.Module] = [nn.Flatten()]
    inward = features
    for _ in range(depth):
        layers += [nn.Linear(inward, hidden), nn.ReLU(inplace=True)]
        inward = hidden
    return nn.Sequential(*layers, nn.Linear(inward, classes))


def _sample(batch: int, generator: Generator, options: Mapping[str, Any]) -> Batch:
    x = torch.randn(batch, options["features"], generator=generator)
    return Batch((x,), class_labels((batch,), options["classes"], generator))


FAMILY = Family(
    name="mlp",
    about="multilayer perceptron",
    network=mlp,
    sample=_sample,
    loss=cross_entropy,
)
