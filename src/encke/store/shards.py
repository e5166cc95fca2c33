"""Rules for the parts of a state that one rank writes, by their names alone.

Names are those of torch.distributed.checkpoint: `model.layer.weight@offset`, and for states of
an optimizer `optim.state.layer.weight.exp_avg@offset`. A weight is told from its second moment
by the end of its name, so no model is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from encke.bound import Absolute, Bound, RmsRelative
from encke.store.errors import StoreError
from encke.store.moments import Moments, debiased, fits
from encke.store.planning import ASSUMED_EXAMPLES
from encke.store.rules import Logarithm, RootRelative, Rule, Within

_SECOND = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")
_LARGEST = 1.5  # of a shard's root mean square


def rules_of_items(
    items: Mapping[str, Tensor],
    *,
    loss: float | None,
    bounds: Mapping[str, Bound],
    moments: Moments | None,
    examples: int | None,
    level: float | None,
    weights: int,
) -> tuple[dict[str, Rule], dict[str, Any]]:
    """Rules by name, and a report.

    weights  how many values all ranks' weights have: what a budget is shared out over
    """
    floats = {n: x for n, x in items.items() if x.is_floating_point() and x.numel() > 1}
    rules: dict[str, Rule] = {}
    report: dict[str, Any] = {}
    if moments is not None:
        rules |= _moment_rules(floats, moments)
    if loss is not None:
        count = examples or ASSUMED_EXAMPLES
        budget = loss * (1.0 if level is None else abs(level))
        found = _weight_rules(items, floats, count, budget, weights)
        rules |= found
        report["budget"] = {
            "relative": loss,
            "loss": 1.0 if level is None else level,
            "allowed": budget,
            "predicted": budget,
            "measured": None,
            "curvature": f"second moments, {count} labels a step"
            + ("" if examples else " assumed"),
            "promise": "on average, by a curvature that was not measured on data",
        }
    for pattern, bound in bounds.items():
        for name in floats:
            plain = name.rpartition("@")[0]
            if not fits(plain, pattern):
                continue
            if plain.endswith(_SECOND) and bound.kind not in ("pointwise", "lossless"):
                raise StoreError(
                    f"bounds: {plain} is a second moment, which {bound!r} would let decode to "
                    "zero or below; give moments=Moments(second=…)"
                )
            rules[name] = Within(bound=bound)
    return rules, report


def _moment_rules(floats: Mapping[str, Tensor], moments: Moments) -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for name, x in floats.items():
        plain, _, offset = name.rpartition("@")
        if ".state." not in plain:
            continue
        stem, _, kind = plain.rpartition(".")
        partner = f"{stem}.exp_avg_sq@{offset}"
        if kind in _SECOND:
            rules[name] = Logarithm(factor=moments.second)
        elif kind == "exp_avg" and partner in floats and floats[partner].shape == x.shape:
            rules[name] = RootRelative(ratio=moments.first, of=partner)
        elif kind in ("exp_avg", "momentum_buffer"):
            rules[name] = Within(bound=RmsRelative(moments.momentum))
    return rules


def _weight_rules(
    items: Mapping[str, Tensor],
    floats: Mapping[str, Tensor],
    examples: int,
    budget: float,
    weights: int,
) -> dict[str, Rule]:
    """Water-filling: with curvature h a value, e² = 6 · budget / (h · weights)."""
    steps = {
        name.rpartition("@")[0].removesuffix(".step"): x
        for name, x in items.items()
        if name.rpartition("@")[0].endswith(".step") and x.numel() == 1
    }
    curvature: dict[tuple[str, str], float] = {}
    for name, x in floats.items():
        plain, _, offset = name.rpartition("@")
        stem, _, kind = plain.rpartition(".")
        if kind == "exp_avg_sq" and ".state." in plain:
            parameter = stem.partition(".state.")[2]
            states = {"exp_avg_sq": x, "step": steps.get(stem)}
            curvature[parameter, offset] = examples * debiased(states)
    rules: dict[str, Rule] = {}
    for name, x in floats.items():
        plain, _, offset = name.rpartition("@")
        if ".state." in plain:
            continue
        h = _found(curvature, plain, offset)
        if h is None or h <= 0:
            continue
        rms = float(x.double().square().mean().sqrt())
        error = min(math.sqrt(6.0 * budget / (h * max(1, weights))), _LARGEST * rms)
        if error > 0:
            rules[name] = Within(bound=Absolute(error))
    if not rules:
        raise StoreError(
            "loss= needs second moments in the state, as optim.state.<parameter>.exp_avg_sq; "
            "save the optimizer's state too (torch.distributed.checkpoint.state_dict), or give "
            "bounds="
        )
    return rules


def _found(curvature: Mapping[tuple[str, str], float], name: str, offset: str) -> float | None:
    """The curvature of a weight, with or without the name of the part it stands in."""
    while True:
        if (name, offset) in curvature:
            return curvature[name, offset]
        _, dot, name = name.partition(".")
        if not dot:
            return None
