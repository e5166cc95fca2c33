"""Which gates are worth what they leave out.

A gate (`tape.batch_norm.masked`) spares the bits of the values that a ReLU blocks, and leaves a
variance in the gradients that no bound makes smaller. It is predicted as if it were noise; but
it has much in common from place to place, so what all gates leave out is measured now and then
(`tape.effects.backward_again`), and predictions are multiplied by what is found. What is left
of the budget has to do for all the others: with bounds that share a variance V over n values
(`bound.allocate`), a variance v less costs n · v / (2 ln 2 · V) bits. A gate that spares
fewer is closed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from encke.bound.allocate import Demand

_MOST = 0.25  # of the budget, whatever it would spare
_FEWEST_BITS = 0.25  # that a value takes, however coarse its bound
_UNKNOWN = 4.0  # measured over predicted variance, until it is measured
_MEMORY = 0.5  # of the running mean of that, in logarithms
_FORGETS = 0.7  # of it stays where all gates are closed, so that they are tried again
_UNEVEN = 3.0  # times the mean of all parameters that a single one's may be


class Gates:
    """The gates that were seen, and which of them are closed.

    variance  of what the open ones leave out

    >>> gates = Gates()
    >>> gates.see("a", variance=0.001, blocked=1000)
    >>> gates.see("b", variance=0.3, blocked=10)
    >>> demands = {name: Demand(values=1000, sensitivity=1.0) for name in "ab"}
    >>> gates.decide(demands, {"a": 0.1, "b": 0.1}, 1.0)
    >>> gates.is_open("a"), gates.is_open("b"), gates.variance
    (True, False, 0.004)
    """

    def __init__(self) -> None:
        self.variance = 0.0
        #: Measured over predicted variance.
        self.factor = _UNKNOWN
        self._seen: dict[str, tuple[float, int]] = {}
        self._closed: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._seen)

    def is_open(self, name: str) -> bool:
        return name not in self._closed

    @property
    def any_open(self) -> bool:
        return len(self._closed) < len(self._seen)

    def measured(self, errors: Mapping[str, float], count: int) -> None:
        """What all open gates leave out, by parameter; the budget is for so many of these."""
        if not self.any_open:
            self.factor = max(1.0, self.factor * _FORGETS)
        elif errors and self.variance > 0:
            mean = sum(errors.values()) / len(errors)
            found = max(mean, max(errors.values()) / _UNEVEN)
            now = max(1.0, self.factor * found * count / self.variance)
            if now < self.factor:  # raised at once, lowered by and by
                now = self.factor**_MEMORY * now ** (1 - _MEMORY)
            self.factor = now

    def see(self, name: str, *, variance: float, blocked: int) -> None:
        """What a gate left out, in a step in which every gate was open."""
        self._seen[name] = variance, blocked

    def decide(
        self, demands: Mapping[str, Demand], bounds: Mapping[str, float], budget: float
    ) -> None:
        """Close those that cost more bits elsewhere than they spare, and the worst beyond a
        share of the budget. The bounds are for normalised values."""
        price = sum(d.values for d in demands.values()) / (2 * math.log(2) * budget)
        self._closed = set()
        self.variance = 0.0
        for name, (left_out, blocked) in sorted(self._seen.items(), key=lambda i: i[1][0]):
            variance = left_out * self.factor
            # The entropy of a normal variable of variance one in steps of twice the bound.
            bits = max(_FEWEST_BITS, 1.05 - math.log2(bounds.get(name) or 1.0))
            if blocked * bits < variance * price or self.variance + variance > _MOST * budget:
                self._closed.add(name)
            else:
                self.variance += variance

    def state_dict(self) -> dict[str, Any]:
        return {
            "seen": {name: list(pair) for name, pair in self._seen.items()},
            "closed": sorted(self._closed),
            "variance": self.variance,
            "factor": self.factor,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seen = {name: (v, int(n)) for name, (v, n) in state.get("seen", {}).items()}
        self._closed = set(state.get("closed", ()))
        self.variance = state.get("variance", 0.0)
        self.factor = state.get("factor", _UNKNOWN)
