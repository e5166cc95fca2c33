"""What every source of data promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from encke.errors import UnsupportedError
from encke.study.zoo.batch import Batch

SPLITS = ("train", "test")


def check_split(split: str) -> None:
    """Raises for anything but "train" and "test"."""
    if split not in SPLITS:
        raise UnsupportedError(f"split is {split!r}, allowed are {', '.join(SPLITS)}")


class Source(ABC):
    """Data in memory, in two splits, "train" and "test".

    A subclass says how many examples a split has and makes a batch of some of them; order,
    shuffling and seeds are the same for all.
    """

    name: str
    classes: tuple[str, ...] = ()

    @abstractmethod
    def count(self, split: str) -> int:
        """How many examples a split has."""

    @abstractmethod
    def tensors(self, split: str) -> dict[str, Tensor]:
        """A split's tensors as they are stored, by name. Shared: not to be written to."""

    @abstractmethod
    def make_batch(self, split: str, index: Tensor, augment: Generator | None) -> Batch:
        """The examples at `index`, varied at random where `augment` is a generator."""

    def augments(self) -> bool:
        """Whether `batches` takes augment=True."""
        return False

    def batches(
        self,
        split: str,
        batch_size: int,
        seed: int | None = None,
        *,
        augment: bool = False,
        drop_last: bool = False,
    ) -> Iterator[Batch]:
        """One pass over a split.

        Without a seed examples come in order. With one they are shuffled: an equal seed
        gives equal batches, so an epoch's number is a good seed. `augment` varies them at
        random, by the same seed. `drop_last` leaves out a last batch that is not full.
        Everything runs in this process.
        """
        check_split(split)
        if batch_size < 1:
            raise UnsupportedError(f"batch_size is {batch_size}, it must be at least 1")
        if augment and not self.augments():
            raise UnsupportedError(f"source {self.name!r} has no augmentation; leave it off")
        if augment and seed is None:
            raise UnsupportedError("augment=True is random and needs seed=, e.g. the epoch")
        return self._iterate(split, batch_size, seed, augment, drop_last)

    def _iterate(
        self, split: str, batch_size: int, seed: int | None, augment: bool, drop_last: bool
    ) -> Iterator[Batch]:
        count = self.count(split)
        generator = Generator()
        order = torch.arange(count)
        if seed is not None:
            generator.manual_seed(seed)
            order = torch.randperm(count, generator=generator)
        for index in torch.split(order, batch_size):
            if len(index) == batch_size or not drop_last:
                yield self.make_batch(split, index, generator if augment else None)
