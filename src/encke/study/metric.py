"""What a network is judged by beside its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from encke.study.zoo.samples import IGNORED


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number for a batch of outputs, averaged over a split by the targets that count.

    unit     that the number is in; "%" numbers go up to 100
    measure  of output and target; None takes the loss itself
    """

    name: str
    unit: str
    better: Literal["higher", "lower"]
    measure: Callable[[Tensor, Tensor], float] | None = None

    def best(self, values: list[float]) -> float:
        """The best of several.

        >>> ACCURACY.best([10.0, 50.0, 30.0])
        50.0
        """
        return max(values) if self.better == "higher" else min(values)


def counted(target: Tensor) -> int:
    """How many targets a loss counts."""
    if target.is_floating_point():
        return len(target)
    return int((target != IGNORED).sum())


def _accuracy(output: Tensor, target: Tensor) -> float:
    """Per cent of the targets that count, classes in the last dimension of `output`."""
    right = (output.argmax(-1) == target) & (target != IGNORED)
    return 100 * float(right.sum()) / max(1, counted(target))


ACCURACY = Metric(name="accuracy", unit="%", better="higher", measure=_accuracy)
TEXT_LOSS = Metric(name="validation loss", unit="nats", better="lower")
SQUARED_ERROR = Metric(name="mean squared error", unit="", better="lower")


def default_metric(target: Tensor) -> Metric:
    """Accuracy for classes, the mean squared error for numbers.

    >>> import torch
    >>> default_metric(torch.tensor([1, 2])).name
    'accuracy'
    """
    return SQUARED_ERROR if target.is_floating_point() else ACCURACY
