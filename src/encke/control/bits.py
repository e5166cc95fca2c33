"""Bits a value, shared out as ActNN and GACT do, for comparison.

Both keep groups of 256 values at 1, 2, 4 or 8 bits between the group's minimum and maximum,
rounded stochastically. A tensor at b bits then adds about s / (2^b - 1)² to the gradients'
variance. ActNN and GACT choose the b_i that give the least variance at a given mean: start
everyone at 8 bits and take away where a bit saved costs the least, until the mean is met.
ActNN takes s from the layer itself; GACT measures it by running backward twice with
different rounding. Here s is what the tape's probes report, for both.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

from encke.bound import FixedRate
from encke.control import arguments
from encke.errors import UnsupportedError
from encke.tape.policy import GradientEffect, SavedTensor, StorageDecision

_LEVELS = (8, 4, 2, 1)


def allocate_bits(demands: Mapping[str, tuple[int, float]], *, mean: float) -> dict[str, int]:
    """Bits for each name, given (values, sensitivity), whose weighted mean is at most `mean`.

    >>> allocate_bits({"a": (100, 1.0), "b": (100, 1000.0)}, mean=5.0)
    {'a': 2, 'b': 8}
    """
    bits = dict.fromkeys(demands, _LEVELS[0])
    total = sum(values for values, _ in demands.values())
    used = float(_LEVELS[0] * total)
    heap: list[tuple[float, str, int]] = []

    def offer(name: str) -> None:
        now = bits[name]
        if now == _LEVELS[-1]:
            return
        lower = _LEVELS[_LEVELS.index(now) + 1]
        values, sensitivity = demands[name]
        added = sensitivity * (1 / (2**lower - 1) ** 2 - 1 / (2**now - 1) ** 2)
        heapq.heappush(heap, (added / ((now - lower) * values), name, lower))

    for name in demands:
        offer(name)
    while heap and used > mean * total:
        _, name, lower = heapq.heappop(heap)
        used -= (bits[name] - lower) * demands[name][0]
        bits[name] = lower
        offer(name)
    return bits


class GroupBits:
    """Group quantisation at a mean number of bits.

    adaptive  share bits out by sensitivity; False gives every tensor the same number
    derive    ActNN and GACT store what they are given: False

    >>> GroupBits(2, adaptive=False).mean
    2.0
    """

    def __init__(
        self,
        mean: float = 2.0,
        *,
        adaptive: bool = True,
        refresh: int = 100,
        derive: bool = False,
    ) -> None:
        arguments.number(mean, of="mean", low=1, high=8, hint="2 bits a value is ActNN's")
        if not adaptive and mean not in _LEVELS:
            raise UnsupportedError(
                f"mean is {mean!r} bits; without adapting, allowed are 1, 2, 4 and 8"
            )
        self.mean, self.adaptive = float(mean), adaptive
        self.refresh = arguments.count(refresh, of="refresh")
        self._derive = derive
        self.bits: dict[str, int] = {}
        self._demands: dict[str, tuple[int, float]] = {}
        self._step = 0
        self._observing = False

    def begin(self, step: int) -> None:
        if self._observing and self._demands:
            self.bits = allocate_bits(self._demands, mean=self.mean)
        self._step += 1
        early = self._step <= self.refresh and self._step & (self._step - 1) == 0
        self._observing = self.adaptive and (early or self._step % self.refresh == 0)
        if self._observing:
            self._demands = {}

    def treat(self, sight: SavedTensor) -> StorageDecision:
        start = 4 if self.adaptive and self.mean < 4 else int(self.mean)
        bits = self.bits.get(str(sight.site), start)
        return StorageDecision(
            bound=FixedRate(bits),
            codec="group",
            dither=False,
            derive=self._derive,
            observe=self._observing,
        )

    def observe(self, effect: GradientEffect) -> None:
        if effect.error <= 0:
            return
        name = str(effect.site)
        bits = self.bits.get(name, 4)
        relative = effect.stream
        if effect.parameter_square > 0:
            relative += effect.predicted / effect.parameter_square
        _, before = self._demands.get(name, (0, 0.0))
        self._demands[name] = (effect.values, before + relative * (2**bits - 1) ** 2)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "bits": dict(self.bits),
            "observing": self._observing,
            "demands": {name: list(demand) for name, demand in self._demands.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step, self.bits = state["step"], dict(state["bits"])
        self._observing = state.get("observing", False)
        self._demands = {name: (n, s) for name, (n, s) in state.get("demands", {}).items()}
