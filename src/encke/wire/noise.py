"""The bound from the gradient's own noise.

Ranks see different batches, so their gradients differ with a standard deviation σ, and the
mean over P ranks jitters with variance σ² / P whether it is compressed or not. Compression
within a bound e adds e² / 3P. The bound that adds the share ρ is therefore √(3ρ)·σ, whatever
the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from encke.errors import UnsupportedError
from encke.wire.failure import answered
from encke.wire.message import Stretch
from encke.wire.protocol import Observation, Segment
from encke.wire.reduce import Moments, sample_of, square_of

_MEMORY = 0.7  # of a running mean of the variance
_RESOLVED = 0.05  # of the coding's own variance: less noise than that cannot be told from none


class NoiseRule:
    """Compression adds `tolerance` times the variance that a gradient has anyway.

    tolerance  0.01 adds as much as a batch smaller by one per cent; the bound is 0.17 σ
    refresh    steps between looks at the noise (more often at first: 1, 2, 4, 8, …)

    Until a segment's noise has been seen, it is exchanged exactly.

    >>> rule = NoiseRule(0.01)
    >>> segment = Segment(name="weight", values=1000, world=2)
    >>> rule.bound(segment, step=1)
    >>> rule.observe(Observation(segment=segment, step=1, bound=None, noise=4.0, square=1.0))
    >>> round(rule.bound(segment, step=2), 3)
    0.346
    """

    def __init__(self, tolerance: float = 0.01, *, refresh: int = 8) -> None:
        if not 0 < tolerance <= 1:
            raise UnsupportedError(
                f"tolerance is {tolerance!r}, allowed is above 0 to 1; 0.01 adds one per cent "
                "to the gradient's variance"
            )
        if refresh < 1:
            raise UnsupportedError(f"refresh is {refresh!r}, allowed is 1 or more steps")
        self.tolerance = tolerance
        self.refresh = refresh
        self.noise: dict[str, float] = {}

    def bound(self, segment: Segment, *, step: int) -> float | None:
        noise = self.noise.get(segment.name, 0.0)
        return math.sqrt(3 * self.tolerance * noise) or None

    def observes(self, *, step: int) -> bool:
        early = step <= self.refresh and step & (step - 1) == 0
        return early or step % self.refresh == 0

    def observe(self, seen: Observation) -> None:
        if not math.isfinite(seen.noise):
            return  # an overflow: the step will be thrown away, and so is this
        name = seen.segment.name
        before = self.noise.get(name)
        early = before is None or seen.step <= self.refresh
        self.noise[name] = (
            seen.noise if early else _MEMORY * before + (1 - _MEMORY) * seen.noise  # type: ignore[operator]
        )

    def state_dict(self) -> dict[str, Any]:
        return {"noise": dict(self.noise)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.noise = {str(name): float(value) for name, value in state["noise"].items()}


def variance_between(moments: Moments, *, world: int, added: float) -> tuple[float, float]:
    """Variance between ranks and mean square of the mean, from sums over a sample.

    `added` is the variance that coding added to each rank's values and that is not theirs.
    """
    if world < 2 or moments.values == 0:
        return 0.0, 0.0
    mean_square = moments.mean_squares / moments.values
    spread = moments.squares / moments.values - world * mean_square
    found = spread / (world - 1)
    return max(found - added, _RESOLVED * added, 0.0), mean_square


def moments_over_ranks(
    given: Tensor, mean: Tensor, stretches: Sequence[Stretch], *, group: object
) -> list[Moments]:
    """Moments after an exact all-reduce, for which the ranks add up their squares."""
    squares = torch.tensor(
        [square_of(given, s) for s in stretches], dtype=torch.float64, device=given.device
    )
    with answered(group):
        dist.all_reduce(squares, group=group)
    return [
        Moments(total, square_of(mean, s), sample_of(mean, s).numel())
        for s, total in zip(stretches, squares.tolist(), strict=True)
    ]
