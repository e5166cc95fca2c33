"""Sharing one variance budget out over many tensors.

A tensor of n values kept within e costs about n · log2(1/e) bits more or less, and adds
s · e² to the relative variance of the gradients. The cheapest bounds that together add V are

    e_i² = n_i · V / (s_i · Σ n)

(water-filling: the derivative of bits by variance is the same everywhere).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """A tensor that wants a bound.

    values       how many it has
    sensitivity  relative variance that an error of ±1 adds to the gradients
    largest      a bound beyond which nothing is gained
    """

    values: int
    sensitivity: float
    largest: float = math.inf


def water_fill(demands: Mapping[str, Demand], *, variance: float) -> dict[str, float]:
    """The bounds with the fewest bits whose added variance is `variance`.

    A tensor that reaches its largest bound before it has used its share leaves the rest to
    the others.

    >>> bounds = water_fill({"a": Demand(values=100, sensitivity=1.0),
    ...                      "b": Demand(values=300, sensitivity=4.0)}, variance=0.04)
    >>> round(bounds["a"], 6), round(bounds["b"], 6)
    (0.1, 0.086603)
    """
    bounds: dict[str, float] = {}
    open_, left = dict(demands), variance
    while open_:
        total = sum(d.values for d in open_.values())
        capped: list[str] = []
        for name, demand in open_.items():
            if demand.sensitivity <= 0:
                bound = demand.largest
            else:
                bound = math.sqrt(demand.values * left / (demand.sensitivity * total))
            if bound >= demand.largest:
                capped.append(name)
            bounds[name] = min(bound, demand.largest)
        if not capped:
            break
        for name in capped:
            demand = open_.pop(name)
            if demand.sensitivity > 0:
                left -= demand.sensitivity * demand.largest**2
        left = max(left, 0.0)
    return bounds
