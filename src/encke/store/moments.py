"""Optimizer state: which of it are running means, and how far those may stray.

Recognised by the optimizer's class and by the names of its states. What is not recognised is
kept exactly, and the file's report lists it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from encke.bound import Bound, Lossless, RmsRelative
from encke.errors import BoundError
from encke.store.rules import Logarithm, RootRelative, Rule, Within


@dataclass(frozen=True, kw_only=True)
class Moments:
    """How far an optimizer's running means may stray.

    second    second moments: decoded/true between 1/second and second
    first     first moments, as a share of the root of the second moment beside them
    momentum  first moments that have no second one, as a share of their root mean square
    """

    second: float = 1.9
    first: float = 0.3
    momentum: float = 0.3

    def __post_init__(self) -> None:
        if not 1.0 < self.second <= 4.0:
            raise BoundError(
                f"Moments: second is {self.second}, allowed is above 1 and up to 4: a factor"
            )
        for name in ("first", "momentum"):
            value = getattr(self, name)
            if not 0.0 < value <= 2.0:
                raise BoundError(f"Moments: {name} is {value}, allowed is above 0 and up to 2")


#: Of each optimizer class: its second moments, first moments beside one, other means.
_ADAM = ({"exp_avg_sq", "max_exp_avg_sq"}, {"exp_avg": "exp_avg_sq"}, set[str]())
_PLAIN_MEANS: tuple[set[str], dict[str, str], set[str]] = (set(), {}, {"momentum_buffer"})
_CLASSES: dict[str, tuple[set[str], dict[str, str], set[str]]] = {
    **dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam"), _ADAM),
    "Adamax": ({"exp_inf"}, {}, {"exp_avg"}),
    "Adagrad": ({"sum"}, {}, set()),
    "Adadelta": ({"square_avg", "acc_delta"}, {}, set()),
    # Centred, RMSprop takes a square off the second moment: `grad_avg` stays exact.
    "RMSprop": ({"square_avg"}, {}, {"momentum_buffer"}),
    "SGD": _PLAIN_MEANS,
    "Adafactor": ({"row_var", "col_var", "variance"}, {}, set()),
    "Muon": _PLAIN_MEANS,
}
#: For classes that are not listed.
_BY_NAME = ({"exp_avg_sq", "max_exp_avg_sq"}, {"exp_avg": "exp_avg_sq"}, {"momentum_buffer"})


def kinds(class_name: str) -> tuple[set[str], dict[str, str], set[str]]:
    """Second moments, first moments with their second ones, and other means of a class."""
    return _CLASSES.get(class_name, _BY_NAME)


def debiased(states: Mapping[str, Any], beta: float = 0.999) -> float:
    """The mean second moment of a parameter, as if it had not started from zero.

    Where a smaller beta was used than is known, this gives more than the mean: bounds that
    are made from it get tighter, not coarser.
    """
    moment, step = states["exp_avg_sq"], states.get("step")
    mean = float(moment.float().mean()) if moment.numel() else 0.0
    if step is None:
        return mean
    known = 1.0 - float(beta ** max(1.0, float(step)))
    return mean / max(known, 1e-12)


def optimizer_rules(
    class_name: str, state: Mapping[Any, Any], moments: Moments, *, prefix: str = "optimizer"
) -> tuple[dict[str, Rule], list[str]]:
    """Rules by tensor name for a `state_dict()["state"]`, and names that are kept exactly.

    >>> import torch
    >>> state = {0: {"exp_avg": torch.ones(9), "exp_avg_sq": torch.ones(9)}}
    >>> sorted(optimizer_rules("AdamW", state, Moments())[0])
    ['optimizer/state/0/exp_avg', 'optimizer/state/0/exp_avg_sq']
    """
    second, first, others = kinds(class_name)
    rules: dict[str, Rule] = {}
    exact: list[str] = []
    for key, states in state.items():
        if not isinstance(states, Mapping):
            continue
        for name, value in states.items():
            path = f"{prefix}/state/{key}/{name}"
            if not isinstance(value, Tensor) or value.numel() < 2:
                continue
            partner = states.get(first.get(name, ""))
            if not value.is_floating_point():
                exact.append(path)
            elif name in second:
                rules[path] = Logarithm(factor=moments.second)
            elif isinstance(partner, Tensor) and partner.shape == value.shape:
                of = f"{prefix}/state/{key}/{first[name]}"
                rules[path] = RootRelative(ratio=moments.first, of=of)
            elif name in others or name in first:
                rules[path] = Within(bound=RmsRelative(moments.momentum))
            else:
                exact.append(path)
    return rules, exact


def given_rules(
    names: list[str], bounds: Mapping[str, Bound], *, optimizer: str
) -> dict[str, Rule]:
    """Rules from bounds by pattern; the last pattern that fits a name counts."""
    second = kinds(optimizer)[0] | _BY_NAME[0]
    rules: dict[str, Rule] = {}
    for pattern, bound in bounds.items():
        fitting = [n for n in names if fits(n, pattern)]
        if not fitting:
            raise BoundError(f"bounds: no tensor is called {pattern!r}")
        for name in fitting:
            moment = name.startswith("optimizer/") and name.rsplit("/", 1)[-1] in second
            if moment and bound.kind not in ("pointwise", "lossless"):
                raise BoundError(
                    f"bounds: {name} is a second moment, which {bound!r} would let decode to "
                    "zero or below; give PointwiseRelative or moments=Moments(second=…)"
                )
            if isinstance(bound, Lossless):
                rules.pop(name, None)
            else:
                rules[name] = Within(bound=bound)
    return rules


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern means a tensor, by its whole name or by the one it has in its part."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.partition("/")[2], pattern)
