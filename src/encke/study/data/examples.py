"""Sources whose examples are rows of tensors: images, fields, jets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from encke.errors import UnsupportedError
from encke.study.data.source import SPLITS, Source, check_split
from encke.study.zoo.batch import Batch


class Split(NamedTuple):
    """Examples and what a network shall make of each."""

    inputs: Tensor
    target: Tensor


def unchanged(x: Tensor) -> Tensor:
    """x."""
    return x


@dataclass(frozen=True, kw_only=True, eq=False)
class Standardise:
    """Subtracts a channel's mean and divides by its deviation, in float32."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Standardise:
        """With mean and deviation of x (n, channels, rows, columns), a slice at a time."""
        total = torch.zeros(x.shape[1], dtype=torch.float64)
        squares = torch.zeros_like(total)
        for part in torch.split(x, 1024):
            values = part.double()
            total += values.sum((0, 2, 3))
            squares += values.square().sum((0, 2, 3))
        count = x.numel() / x.shape[1]
        mean = total / count
        deviation = (squares / count - mean.square()).clamp_min(1e-12).sqrt()
        return cls(mean=mean.float()[:, None, None], deviation=deviation.float()[:, None, None])

    def __call__(self, x: Tensor) -> Tensor:
        return (x.float() - self.mean) / self.deviation


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples(Source):
    """Tensors with a row an example, prepared when a batch is made.

    >>> x, y = torch.rand(10, 1, 8, 8), torch.zeros(10, dtype=torch.int64)
    >>> source = Examples(name="mine", train=Split(x[:8], y[:8]), test=Split(x[8:], y[8:]))
    >>> (images,), target = next(source.batches("train", 4, seed=0))
    >>> images.shape, target.shape
    (torch.Size([4, 1, 8, 8]), torch.Size([4]))
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...] = ()
    prepare: Callable[[Tensor], Tensor] = unchanged
    prepare_target: Callable[[Tensor], Tensor] = unchanged
    augmentation: Callable[[Tensor, Generator], Tensor] | None = None

    def __post_init__(self) -> None:
        for split in SPLITS:
            inputs, target = self._split(split)
            if len(inputs) != len(target):
                raise UnsupportedError(
                    f"source {self.name!r}: {split} has {len(inputs)} inputs and "
                    f"{len(target)} targets, both must be as many"
                )

    def _split(self, split: str) -> Split:
        check_split(split)
        return self.train if split == "train" else self.test

    def count(self, split: str) -> int:
        return len(self._split(split).target)

    def tensors(self, split: str) -> dict[str, Tensor]:
        return self._split(split)._asdict()

    def augments(self) -> bool:
        return self.augmentation is not None

    def make_batch(self, split: str, index: Tensor, augment: Generator | None) -> Batch:
        stored = self._split(split)
        inputs = stored.inputs[index]
        if augment is not None and self.augmentation is not None:
            inputs = self.augmentation(inputs, augment)
        return Batch((self.prepare(inputs),), self.prepare_target(stored.target[index]))

    def head(self, *, train: int | None = None, test: int | None = None) -> Examples:
        """A source of only the first examples of each split, prepared in the same way."""
        return replace(
            self,
            train=Split(self.train.inputs[:train], self.train.target[:train]),
            test=Split(self.test.inputs[:test], self.test.target[:test]),
        )


def divide(inputs: Tensor, target: Tensor, *, test_share: float) -> tuple[Split, Split]:
    """Train and test split of examples that have none, by a fixed shuffle."""
    if not 0 < test_share < 1:
        raise UnsupportedError(f"test_share is {test_share}, it must lie between 0 and 1")
    order = torch.randperm(len(target), generator=Generator().manual_seed(0))
    held = round(test_share * len(target))
    train, test = order[held:], order[:held]
    return Split(inputs[train], target[train]), Split(inputs[test], target[test])
