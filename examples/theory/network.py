"""A small residual network on scikit-learn's digits, trained a little with a tape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import encke
from encke.bound import Absolute
from encke.study import data, zoo
from encke.tape import GradientEffect, SavedTensor, StorageDecision
from encke.tape.policy import KEEP

STEPS = 33  # the controller observes steps 1, 2, 4, …, 32


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The network, a batch, and what the controller has learnt."""

    network: nn.Module
    images: Tensor
    labels: Tensor
    policy: encke.Adaptive
    tape: encke.Tape


def train(steps: int = STEPS) -> Trained:
    network = zoo.build("resnet_cifar", seed=0, depth=8, width=16, channels=1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    policy = encke.Adaptive(optimizers=[optimizer], model=network, reference="momentum")
    tape = encke.attach(network, policy=policy)
    source = data.load("digits")
    for _, ((images,), labels) in zip(
        range(steps), source.batches("train", 40, 0), strict=False
    ):
        images = F.interpolate(images, size=(32, 32), mode="bilinear")
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
    return Trained(network=network, images=images, labels=labels, policy=policy, tape=tape)


@dataclass
class Given:
    """A policy that keeps each tensor within the bound that it is given for the place.

    scales  root mean square of each tensor that it was asked about
    """

    bounds: Mapping[str, float]
    scales: dict[str, float] = field(default_factory=dict)

    def begin(self, step: int) -> None:
        """Nothing to learn."""

    def treat(self, sight: SavedTensor) -> StorageDecision:
        name = str(sight.site)
        self.scales[name] = float(sight.tensor.square().mean().sqrt())
        bound = self.bounds.get(name)
        return (
            KEEP if bound is None else StorageDecision(bound=Absolute(bound), codec="entropy")
        )

    def observe(self, effect: GradientEffect) -> None:
        """Nothing to learn."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing was learnt."""


def forward(trained: Trained, bounds: Mapping[str, float]) -> tuple[Given, int]:
    """One forward pass within these bounds: the policy, and the lossy tensors' bytes."""
    policy = Given(bounds)
    tape = encke.attach(trained.network, policy=policy)
    trained.network(trained.images)
    stored = sum(record.stored for record in tape.records if record.how == "lossy")
    tape.detach()
    return policy, stored
