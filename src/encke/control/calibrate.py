"""Holding the predicted error of the gradients to the measured one.

Predictions treat the errors of tensors as independent and follow each through one op. What all
of them do together is measured now and then (`tape.effects.backward_again`). From that follow

factor   measured over predicted variance, a mean over weights: bounds are set so that the
         predicted variance times this is the tolerance
weights  how much a parameter's error counts when the tolerance is shared out: more than one for
         parameters whose own error was above `CAP` times the tolerance
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from encke.control.sensitivity import Part, Shares
from encke.tape.effects.gradient_samples import GradientError

CAP = 2.0  # times the tolerance that a single parameter's error may be
_AIM = 1.5  # times the tolerance: where a parameter above the cap is brought to
_FASTEST = 32.0  # by which a weight changes at once, at most
_LARGEST_WEIGHT = 1e6
#: Of the factor's running mean, in logarithms: where it grows, and where it falls.
_MEMORY = 0.15, 0.4
#: Share of a vector's gradient that is error, above which it is taken to be nothing else.
_NOTHING_ELSE = 0.5
#: How much of a relative error of dY arrives in a vector (a bias, the scale of a norm), whose
#: sum over positions is not predicted.
_VECTOR = 0.3


class Calibration:
    """What measurements have shown.

    >>> calibration = Calibration()
    >>> found = {"a.weight": GradientError(0.06, 1.0), "b.weight": GradientError(0.0, 1.0)}
    >>> scales = {"a.weight": 1.0, "b.weight": 1.0}
    >>> calibration.see(found, scales, {}, tolerance=0.01, predicted=0.06, early=True)
    >>> round(calibration.factor, 3), round(calibration.weights["a.weight"], 3)
    (0.5, 4.0)
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self.weights: dict[str, float] = {}
        #: Of the last measurement: the mean over weights, and the largest of any parameter.
        self.measured: float | None = None
        self.worst: tuple[str, float] | None = None

    def see(
        self,
        found: Mapping[str, GradientError],
        scales: Mapping[str, float],
        parameters: Mapping[str, Tensor],
        *,
        tolerance: float,
        predicted: float,
        early: bool,
    ) -> None:
        """Learn from a measured step.

        scales     what each parameter's error is relative to
        predicted  the mean over weights before calibration
        early      whether what was learnt before is of another phase of training
        """
        errors = _relative(found, scales, parameters)
        flat = [e for n, e in errors.items() if n not in parameters or parameters[n].ndim > 1]
        if not errors:
            return
        several = flat or list(errors.values())
        mean = sum(several) / len(several)
        self.measured = mean
        name = max(errors, key=errors.__getitem__)
        self.worst = name, errors[name]
        if predicted > 0 and mean > 0:
            now = mean / predicted
            memory = 0.0 if early else _MEMORY[now < self.factor]
            self.factor = self.factor**memory * now ** (1 - memory)
        for name, error in errors.items():
            self._weigh(name, error / tolerance)

    def _weigh(self, name: str, excess: float) -> None:
        before = self.weights.get(name, 1.0)
        if excess > CAP:
            now = before * min(excess / _AIM, _FASTEST)
        elif excess < 1.0 and before > 1.0:
            now = before * max(math.sqrt(excess / _AIM), 1 / _FASTEST)
        else:
            return
        now = min(now, _LARGEST_WEIGHT)
        if now > 1.0:
            self.weights[name] = now
        else:
            self.weights.pop(name, None)

    # -- for predictions -----------------------------------------------------------------

    def sensitivity(self, parts: Iterable[Part], upstream: Upstream) -> float:
        """Variance that an error of ±1 adds, with each parameter's weight."""
        weight = self.weights.get
        return sum(
            part.own * weight(part.parameter or "", 1.0) + part.flow * upstream(part.order)
            for part in parts
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "factor": self.factor,
            "weights": dict(self.weights),
            "measured": self.measured,
            "worst": None if self.worst is None else list(self.worst),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.factor = state.get("factor", 1.0)
        self.weights = dict(state.get("weights", {}))
        self.measured = state.get("measured")
        worst = state.get("worst")
        self.worst = None if worst is None else (worst[0], worst[1])


class Upstream:
    """By how much weights raise the effect of an error that flows on from some place."""

    def __init__(self, shares: Shares, weights: Mapping[str, float]) -> None:
        self._shares: list[tuple[int, float, float]] = []
        self._known: dict[int, float] = {}
        if not weights:
            return
        orders: dict[str, int] = {}
        for one in shares:
            orders[one.parameter.rpartition(".")[0]] = one.order
            weight = weights.get(one.parameter, 1.0)
            self._shares.append((one.order, one.share, one.share * weight))
        flat = {one.parameter for one in shares}
        for name, weight in weights.items():
            if (
                name not in flat
            ):  # one that no product belongs to: with its module's, or before all
                order = orders.get(name.rpartition(".")[0], -1)
                self._shares.append((order, 0.0, _VECTOR * (weight - 1.0)))

    def __call__(self, order: int) -> float:
        if not self._shares:
            return 1.0
        known = self._known.get(order)
        if known is None:
            before = [(plain, full) for place, plain, full in self._shares if place < order]
            plain = sum(one for one, _ in before)
            full = sum(one for _, one in before)
            known = self._known[order] = max(full, 1.0) / max(plain, 1.0)
        return known


def _relative(
    found: Mapping[str, GradientError],
    scales: Mapping[str, float],
    parameters: Mapping[str, Tensor],
) -> dict[str, float]:
    """Each parameter's error over its scale.

    The gradient of some vectors is zero but for rounding (a bias before a batch norm, or of an
    attention's keys). Their error is measured against the mean square of all gradients.
    """
    counts = {name: parameters[name].numel() for name in found if name in parameters}
    total = sum(found[name].square for name in counts)
    typical = total / max(1, sum(counts.values()))
    result = {}
    for name, (error, square, _) in found.items():
        scale = scales.get(name, 0.0)
        vector = name in parameters and parameters[name].ndim < 2
        if vector and error > _NOTHING_ELSE * (square + error):
            scale = max(scale, typical * counts[name])
        if scale > 0 and math.isfinite(error):
            result[name] = error / scale
    return result


def mean_variance(
    bounds: Mapping[str, float], sensitivities: Mapping[str, float], count: int
) -> float:
    """What bounds are predicted to add, a mean over so many weights.

    >>> mean_variance({"a": 0.1}, {"a": 2.0, "b": 1.0}, 2)
    0.010000000000000002
    """
    added: Sequence[float] = [sensitivities.get(n, 0.0) * e**2 for n, e in bounds.items()]
    return sum(added) / max(1, count)
