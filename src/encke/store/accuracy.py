"""A budget in the user's own metric, found by trying (DeepSZ's way).

Bounds are shared out as for a loss budget; how large they may be altogether is found by
bisection, with the model evaluated on what a file would give back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from encke.errors import BoundError
from encke.store.curvature import Curvature, calibrate, undisturbed
from encke.store.fitting import attempt, in_place
from encke.store.objective import Objective, default_objective
from encke.store.rules import Exact, Rule
from encke.store.subjects import Subject, subjects_of

_TRIALS = 12
_START = 1e-2  # of the loss, or of the weights' mean square where there is no loss


def fitted(
    model: Any,
    evaluate: Callable[[Any], float] | None,
    accuracy: float,
    data: Iterable[Any] | None,
    objective: Objective | None,
    *,
    feedback: bool,
) -> tuple[dict[str, Rule], dict[str, Any]]:
    """Rules for the coarsest codes whose metric falls by at most `accuracy`, and a report."""
    if not isinstance(model, nn.Module) or evaluate is None:
        raise BoundError("accuracy= needs the model itself and evaluate=")
    if not isinstance(accuracy, (int, float)) or not 0 <= accuracy < math.inf:
        raise BoundError(
            f"accuracy is {accuracy!r}, allowed is 0 or more, in the metric's unit"
        )
    if data is not None:
        chosen = objective or default_objective
        found = calibrate(model, data, chosen, feedback=feedback)
        scale = abs(found.loss)
    else:
        found, scale = _equal_shares(model), 1.0
    subjects = subjects_of(model, found, feedback=feedback)
    before = _metric(model, evaluate)
    best, after, budget = _search(model, evaluate, subjects, before - accuracy, scale)
    rules: dict[str, Rule] = {}
    for coded in best:
        if not isinstance(coded.rule, Exact):
            rules |= {f"model/{name}": coded.rule for name in coded.subject.names}
    report = {
        "allowed": float(accuracy),
        "before": before,
        "after": before if after is None else after,
        "budget": budget,
        "curvature": found.source,
    }
    return rules, report


def _search(
    model: nn.Module,
    evaluate: Callable[[Any], float],
    subjects: list[Subject],
    least: float,
    scale: float,
) -> tuple[list[Any], float | None, float]:
    """The codes of the largest budget that passes; it is doubled or halved, then bisected."""
    best: list[Any] = []
    after, found = None, 0.0
    low, high, budget = 0.0, math.inf, _START * scale
    for _ in range(_TRIALS):
        trial = attempt(subjects, budget, None)
        with in_place(trial.coded):
            metric = _metric(model, evaluate)
        if metric >= least:
            best, after, found, low = trial.coded, metric, budget, budget
        else:
            high = budget
        if high == math.inf:
            budget *= 4.0
        elif low == 0.0:
            budget /= 8.0
        else:
            if high / low < 1.1:
                break
            budget = math.sqrt(low * high)
    return best, after, found


def _metric(model: nn.Module, evaluate: Callable[[Any], float]) -> float:
    with undisturbed(model):
        found = float(evaluate(model))
    if not math.isfinite(found):
        return -math.inf
    return found


def _equal_shares(model: nn.Module) -> Curvature:
    """Without data every tensor strays by the same share of its root mean square."""
    mean = {}
    for name, p in model.named_parameters():
        if p.is_floating_point() and p.numel():
            square = float(p.detach().double().square().mean())
            mean[name] = 1.0 / (square * p.numel()) if square > 0 else 0.0
    return Curvature(loss=1.0, mean=mean, source="none: an equal share for every tensor")
