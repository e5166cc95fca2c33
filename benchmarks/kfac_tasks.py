"""Small trainings with a target: what benchmarks/kfac.py measures optimizers on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encke.study import data, zoo
from encke.study.zoo import Batch


class Task(ABC):
    """A network, its batches and a figure that is to fall to `target`."""

    name: str
    metric: str
    target: float
    most_steps: int
    #: How often the figure is looked at; that time is not counted.
    every: int
    batch: int
    #: The name that `KFAC.sample` knows the loss by.
    kfac_loss = "cross_entropy"
    #: Per way: learning rate and, for K-FAC, damping and clip.
    rates: ClassVar[dict[str, dict[str, Any]]]

    @abstractmethod
    def build(self, seed: int) -> nn.Module: ...

    @abstractmethod
    def source(self) -> data.Source: ...

    def batches(self, seed: int) -> Iterator[Batch]:
        """The same batches for every way, pass after pass."""
        epoch = 0
        while True:
            yield from self.source().batches(
                "train", self.batch, 1000 * seed + epoch, drop_last=True
            )
            epoch += 1

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(output, batch.target)

    @torch.no_grad()
    def score(self, model: nn.Module) -> float:
        """The loss over the whole train split: what optimizers are to lower, without noise."""
        batches = self.source().batches("train", 1024)
        total = sum(
            float(self.loss(model(*batch.inputs), batch)) * len(batch.target)
            for batch in batches
        )
        return total / self.source().count("train")


class Autoencoder(Task):
    """Eight layers with a code of ten numbers, which plain gradient descent hardly trains."""

    name, metric, target, most_steps, every, batch = "autoencoder", "mse", 0.012, 1500, 2, 256
    kfac_loss = "mse"
    sizes = (64, 128, 64, 32, 10, 32, 64, 128, 64)
    rates: ClassVar[dict[str, dict[str, Any]]] = {
        "sgd": {"lr": 1.0},
        "adam": {"lr": 3e-3},
        "muon": {"lr": 0.02, "adam": 3e-3},
        "kfac": {"lr": 0.1, "damping": 1e-3, "kl_clip": 1e-4},
    }

    def build(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for before, after in pairwise(self.sizes):
            layers += [nn.Linear(before, after), nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    def source(self) -> data.Source:
        return _pixels()

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        return F.mse_loss(output, batch.inputs[0])

    @torch.no_grad()
    def score(self, model: nn.Module) -> float:
        """On all digits it is trained with."""
        every = _pixels().train.inputs
        return float(F.mse_loss(model(every), every))


@lru_cache
def _pixels() -> data.Examples:
    """All 1,797 digits as rows of 64 values from 0 to 1."""
    digits = data.load("digits")
    parts = [digits.tensors(split)["inputs"] for split in ("train", "test")]
    rows = torch.cat(parts).flatten(1).float() / 16
    whole = data.Split(rows, torch.zeros(len(rows), dtype=torch.int64))
    return data.Examples(name="pixels", train=whole, test=whole)


class Digits(Task):
    """Two convolutions and a linear layer."""

    name, metric, target, most_steps, every, batch = "digits", "loss", 0.05, 400, 1, 128
    rates: ClassVar[dict[str, dict[str, Any]]] = {
        "sgd": {"lr": 0.1},
        "adam": {"lr": 1e-2},
        "muon": {"lr": 0.02, "adam": 1e-2},
        "kfac": {"lr": 0.1, "damping": 1e-2, "kl_clip": 3e-4},
    }

    def build(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )

    def source(self) -> data.Source:
        return _digits()


@lru_cache
def _digits() -> data.Source:
    return data.load("digits")


class Cifar(Task):
    """Three strided convolutions on 4,096 pictures."""

    name, metric, target, most_steps, every, batch = "cifar10", "loss", 1.3, 300, 5, 128
    rates: ClassVar[dict[str, dict[str, Any]]] = {
        "sgd": {"lr": 0.05},
        "adam": {"lr": 3e-3},
        "muon": {"lr": 0.02, "adam": 3e-3},
        "kfac": {"lr": 0.1, "damping": 1e-2, "kl_clip": 1e-3},
    }

    def build(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))

    def source(self) -> data.Source:
        return _cifar()


@lru_cache
def _cifar() -> data.Source:
    pictures: data.Examples = data.load("cifar10")  # type: ignore[assignment]
    return pictures.head(train=4096, test=1000)


class Shakespeare(Task):
    """Two layers of GPT on characters, with an output matrix of its own."""

    name, metric, target, most_steps, every, batch = "gpt", "test loss", 2.5, 300, 2, 16
    rates: ClassVar[dict[str, dict[str, Any]]] = {
        "sgd": {"lr": 0.3},
        "adam": {"lr": 3e-3},
        "muon": {"lr": 0.02, "adam": 3e-3},
        "kfac": {"lr": 0.3, "damping": 3e-2, "kl_clip": 1e-2},
    }

    def build(self, seed: int) -> nn.Module:
        return zoo.model(
            "gpt", vocab=_text().vocab, block_size=32, n_layer=2, n_head=2, n_embd=64,
            tie_weights=False,
        ).build(seed=seed)  # fmt: skip

    def source(self) -> data.Source:
        return _text()

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), batch.target.flatten())

    @torch.no_grad()
    def score(self, model: nn.Module) -> float:
        batch = next(self.source().batches("test", 64))
        return float(self.loss(model(*batch.inputs), batch))


@lru_cache
def _text() -> data.Text:
    text: data.Text = data.load("text", block_size=32)  # type: ignore[assignment]
    return text


TASKS: dict[str, Task] = {
    task.name: task for task in (Autoencoder(), Digits(), Cifar(), Shakespeare())
}
