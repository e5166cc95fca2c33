"""How long and with what a network is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

from encke.study.errors import StudyError, check_keys, unknown

OPTIMIZERS = ("sgd", "adamw", "adam")
SCHEDULES = ("onecycle", "cosine", "constant")
_DECAY = {"sgd": 5e-4, "adamw": 0.01, "adam": 0.0}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of one training.

    epochs, steps  how long; one of them, or both: whichever ends first
    batch          examples of a step; a user's own loaders make their batches themselves
    optimizer      sgd (with Nesterov momentum), adamw, adam
    rate           the learning rate at its highest
    schedule       onecycle, cosine or constant
    train, test    how many examples are used; all unless given
    augment        vary the examples at random; as the data set can, unless given
    points         of the curve, beside the one before the first step
    pairs          of steps that are timed, one plain and one not
    """

    epochs: int | None = None
    steps: int | None = None
    batch: int = 64
    optimizer: str = "sgd"
    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float | None = None
    schedule: str = "onecycle"
    train: int | None = None
    test: int | None = None
    augment: bool | None = None
    points: int = 10
    pairs: int = 12

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        for name in ("epochs", "steps", "batch", "train", "test", "points", "pairs"):
            value = getattr(self, name)
            if value is None and name not in ("batch", "points", "pairs"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise StudyError(f"{name} is {value!r}, allowed are whole numbers from 1")
        for name in ("rate", "momentum", "weight_decay"):
            value = getattr(self, name)
            if value is None and name == "weight_decay":
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
                raise StudyError(f"{name} is {value!r}, allowed are numbers from 0")
        if self.augment is not None and not isinstance(self.augment, bool):
            raise StudyError(f"augment is {self.augment!r}, allowed are true and false")

    @classmethod
    def of(cls, *given: Mapping[str, Any]) -> Settings:
        """From tables of which the later ones win."""
        names = [field.name for field in fields(cls)]
        merged: dict[str, Any] = {}
        for table in given:
            check_keys("training", table, names)
            merged |= table
        return cls(**merged)

    def to_json(self) -> dict[str, Any]:
        """What is not left at its default."""
        default = asdict(Settings())
        return {name: value for name, value in asdict(self).items() if value != default[name]}

    def total_steps(self, steps_per_epoch: int) -> int:
        """Steps of the whole training; one epoch if nothing is said."""
        ends = [] if self.steps is None else [self.steps]
        if self.epochs is not None or not ends:
            ends.append((self.epochs or 1) * steps_per_epoch)
        return min(ends)

    def make_optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """For all parameters of `network`."""
        decay = _DECAY[self.optimizer] if self.weight_decay is None else self.weight_decay
        parameters = network.parameters()
        if self.optimizer == "sgd":
            return torch.optim.SGD(
                parameters,
                lr=self.rate,
                momentum=self.momentum,
                weight_decay=decay,
                nesterov=self.momentum > 0,
            )
        adam = torch.optim.AdamW if self.optimizer == "adamw" else torch.optim.Adam
        return adam(parameters, lr=self.rate, weight_decay=decay)

    def make_schedule(self, optimizer: torch.optim.Optimizer, *, steps: int) -> LRScheduler:
        """Over `steps` steps."""
        if self.schedule == "onecycle":
            # One more than are taken: the schedule moves once before the first.
            return OneCycleLR(optimizer, self.rate, total_steps=steps + 1)
        if self.schedule == "cosine":
            return CosineAnnealingLR(optimizer, steps)
        return LambdaLR(optimizer, lambda _: 1.0)
