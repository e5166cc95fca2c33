"""The channels of a batch norm's input, and the norm's own statistics of them.

Channels differ in mean and variance, and the norm divides each by its own deviation: an error
that is small for one channel may be large for another. Normalised values have one scale, so
one bound suits all of them, and one table of frequencies codes them well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NORMS = ("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm")


def statistics(node: Any, op: str) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation with which a batch norm's node normalised its input."""
    if op != "NativeBatchNorm" or node._saved_training:
        return node._saved_result1.detach(), node._saved_result2.detach()
    variance = node._saved_running_var.detach()
    return node._saved_running_mean.detach(), (variance + node._saved_eps).rsqrt()


def channels_of(node: Any, op: str, role: str, t: Tensor) -> Channels | None:
    """The channels of a batch norm's input; None for other tensors.

    Not in half precision, whose rounding on the way there and back would add to the error.
    """
    if op not in NORMS or role != "input" or t.dtype not in (torch.float32, torch.float64):
        return None
    mean, spread = statistics(node, op)
    return Channels(mean.to(t.dtype), spread.to(t.dtype), t.ndim)


class Channels:
    """Mean and reciprocal deviation of each channel, as a batch norm computed them."""

    __slots__ = ("_mean", "_spread")

    def __init__(self, mean: Tensor, spread: Tensor, dimensions: int) -> None:
        self._mean = mean.detach().view(1, -1, *(1,) * (dimensions - 2))
        self._spread = spread.detach().view_as(self._mean)

    @property
    def gain(self) -> Tensor:
        return self._spread.flatten()

    @property
    def _shift(self) -> Tensor:
        return -self._mean * self._spread

    @property
    def shift(self) -> Tensor:
        return self._shift.flatten()

    @property
    def back(self) -> tuple[Tensor, Tensor]:
        """Gain and shift of the way back, channel by channel."""
        return 1 / self._spread.flatten(), self._mean.flatten()

    def normalise(self, x: Tensor) -> Tensor:
        """Values of mean zero and variance one in every channel."""
        return torch.addcmul(self._shift, x, self._spread)

    def restore(self, normal: Tensor) -> Tensor:
        """The way back, in place."""
        return torch.addcmul(self._mean, normal, 1 / self._spread, out=normal)

    def widen(self, error: Tensor) -> Tensor:
        """An error of normalised values, in the units of the values; in place."""
        return error.div_(self._spread)
