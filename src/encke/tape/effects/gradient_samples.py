"""Samples of the gradients of one optimizer step, added up over its backward passes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_SIZE = 768  # values of each gradient


class GradientError(NamedTuple):
    """Of one parameter's gradient in a measured step.

    error     ‖Δg‖² by the errors of stored tensors
    square    ‖g‖², without that
    left_out  ‖Δg‖² by what gates leave out, if that was measured
    """

    error: float
    square: float
    left_out: float | None = None


def sample(gradient: Tensor, seed: int) -> Tensor:
    """Values spread over a gradient, in memory of their own.

    >>> sample(torch.ones(1000, 10), 3).shape
    torch.Size([769])
    """
    flat = gradient.reshape(-1)
    # An odd distance meets every place of rows whose length is a power of two.
    apart = 1 | max(1, flat.numel() // _SIZE)
    return flat[seed % apart :: apart].to(torch.float32, copy=True)


class Samples:
    """By parameter: the sum of samples over the backward passes that count.

    >>> samples = Samples()
    >>> for number in (1, 1, 2, 3):
    ...     if number == 2:
    ...         samples.add("p", torch.ones(1), 2)
    ...         samples.forget_before("p")  # p.grad was set to zero before this pass
    ...     else:
    ...         samples.add("p", torch.ones(1), number)
    >>> samples.total("p")
    tensor([2.])
    """

    def __init__(self) -> None:
        self._passes: dict[str, int] = {}
        self._now: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self._now)

    def names(self) -> list[str]:
        return list(self._now)

    def add(self, name: str, part: Tensor, number: int) -> None:
        """A sample of what the backward pass of this number adds to a gradient."""
        now = self._now.get(name)
        if now is not None and self._passes[name] == number:
            self._now[name] = now + part
            return
        if now is not None:
            before = self._before.get(name)
            self._before[name] = now if before is None else before + now
        self._now[name], self._passes[name] = part, number

    def forget_before(self, name: str) -> None:
        """What earlier passes added is no longer in the gradient."""
        self._before.pop(name, None)

    def total(self, name: str) -> Tensor | None:
        now, before = self._now.get(name), self._before.get(name)
        return now if now is None or before is None else now + before

    def clear(self) -> None:
        self._passes.clear()
        self._now.clear()
        self._before.clear()
