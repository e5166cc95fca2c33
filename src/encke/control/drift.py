"""When to measure again: gradients that have grown or shrunk since.

What an error does relative to a gradient changes as the gradient does: a critic's grows as it
learns, a classifier's shrinks. Which way the relative error goes depends on the loss, so a
change sets no bound. It only asks for a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_EVERY = 4  # steps between looks at the gradients
_FAR = math.log(1.6)  # of the mean logarithm of ‖g‖²: a change that asks for a measurement
_MEMORY = 0.5  # of the running mean, over which single batches are forgotten
_APART = 8  # steps between measurements that are asked for
#: Steps for each measurement, and how many may come before: so few that they take no time.
_STEPS_EACH = 34
_AHEAD = 3


class GradientDrift:
    """Follows the size of the gradients from step to step.

    >>> drift, p = GradientDrift(), torch.nn.Parameter(torch.ones(2, 2))
    >>> for step in range(1, 41):
    ...     p.grad = torch.full((2, 2), 1.0 if step <= 20 else 4.0)
    ...     drift.see([p], step)
    ...     if step == 20:
    ...         drift.measured(step)
    >>> drift.asks(40, measurements=1)
    True
    """

    def __init__(self) -> None:
        self._now: float | None = None
        self._then: float | None = None
        self._last = 0

    def see(self, parameters: Iterable[Tensor], step: int) -> None:
        """The optimizer has stepped; p.grad is what it saw."""
        if step % _EVERY:
            return
        gradients = [
            p.grad
            for p in parameters
            if p.ndim > 1 and type(p.grad) is Tensor and p.grad.layout == torch.strided
        ]
        if not gradients:
            return
        norms = torch.stack([n.float() for n in torch._foreach_norm(gradients)])
        found = norms[norms > 0].log().mul_(2)
        mean = float(found.mean()) if found.numel() else math.nan
        if math.isfinite(mean):
            before = self._now
            self._now = mean if before is None else _MEMORY * before + (1 - _MEMORY) * mean

    def measured(self, step: int) -> None:
        """A measurement was made: changes count from here."""
        self._then, self._last = self._now, step

    def asks(self, step: int, *, measurements: int) -> bool:
        """Whether it is worth measuring again."""
        if self._now is None or self._then is None or step - self._last < _APART:
            return False
        affordable = measurements < _AHEAD + step // _STEPS_EACH
        return affordable and abs(self._now - self._then) > _FAR

    def state_dict(self) -> dict[str, Any]:
        return {"now": self._now, "then": self._then, "last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._now, self._then = state.get("now"), state.get("then")
        self._last = state.get("last", 0)
