"""Random batches of any model's shapes, where learning does not matter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Generator, Tensor

from encke.errors import UnsupportedError
from encke.study import zoo
from encke.study.data.source import Source, check_split


@dataclass(frozen=True, kw_only=True, eq=False)
class Synthetic(Source):
    """`Model.sample_batch` as a source. There is nothing to learn: targets are random."""

    name: str
    model: zoo.Model
    train: int
    test: int

    def __post_init__(self) -> None:
        if self.train < 1 or self.test < 1:
            raise UnsupportedError(
                f"train is {self.train} and test {self.test}, both must be at least 1"
            )

    def count(self, split: str) -> int:
        check_split(split)
        return self.train if split == "train" else self.test

    def tensors(self, split: str) -> dict[str, Tensor]:
        (*inputs, target) = self._sample(split, self.count(split), 0)
        return {f"input{i}": x for i, x in enumerate(inputs)} | {"target": target}

    def make_batch(self, split: str, index: Tensor, augment: Generator | None) -> zoo.Batch:
        *inputs, target = self._sample(split, len(index), int(index[0]))
        return zoo.Batch(tuple(inputs), target)

    def _sample(self, split: str, count: int, first: int) -> list[Tensor]:
        # Even seeds train, odd seeds test: the splits share no batch.
        batch = self.model.sample_batch(count, seed=2 * first + (split == "test"))
        return [*batch.inputs, batch.target]


def load_synthetic(
    *,
    root: str | Path | None = None,
    model: str | zoo.Model = "mlp",
    train: int = 1024,
    test: int = 256,
    **options: Any,
) -> Synthetic:
    """Batches for a model of the zoo, given itself or by name and options."""
    if isinstance(model, str):
        model = zoo.model(model, **options)
    elif options:
        raise UnsupportedError(
            f"options {', '.join(options)} are given beside a model that has its own already"
        )
    return Synthetic(name="synthetic", model=model, train=train, test=test)
