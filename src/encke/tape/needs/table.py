"""What each op's backward needs of the tensors it saved.

Autograd saves whole tensors because it must be exact about all of them. Most ops need less:
ReLU the sign, max-pooling its window positions, pooling's input only its shape. A table says
so, op by op and role by role, with the names that autograd itself uses (`ReluBackward0` saves
`result`). `lossy_ops` and `exact_ops` fill it; an op or role that is not in it stays exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor


class Need(Enum):
    """How much of a saved tensor backward needs."""

    VALUE = "value"  # its values, which may carry an error
    EXACT = "exact"  # its values as they are
    WEIGHT = "weight"  # as VALUE, unless it is or comes from a parameter or a constant
    FACTOR = "factor"  # as VALUE, unless it is a constant, a dropout's noise for one
    MASK = "mask"  # as EXACT, but packed where it holds zero and one other value
    SIGN = "sign"  # on which side of a threshold each value lies
    INDEX = "index"  # integers
    WINDOW = "window"  # a max-pool's winner, as its place in the window
    SHAPE = "shape"  # nothing but its shape
    RERUN = "rerun"  # what the op gives when it runs again on the inputs it saved


@dataclass(frozen=True, slots=True)
class Rule:
    """A need, and what goes with it.

    split  for `SIGN`: how to split (at zero, without it)
    sides  for `SIGN`: what stands for each side in backward
    zero_tells  whether a zero is on the one side and every other value on the other, so that
                values kept with exact zeros tell the side as well
    why    for `EXACT`: the reason, in words
    pick   the rule for one node, where it depends on the node's options; `need` is then the
           least that a node may need
    probe  whether the node may be called twice in backward, to measure what an error does
    """

    need: Need
    split: Callable[[Tensor, Any], Tensor] | None = None
    sides: Callable[[Any], tuple[float, float]] | None = None
    zero_tells: bool = False
    why: str = ""
    pick: Callable[[Any], Rule] | None = None
    probe: bool = True


def exact(why: str) -> Rule:
    """Every bit is needed, for the reason given.

    >>> exact("a loss").need
    <Need.EXACT: 'exact'>
    """
    return Rule(Need.EXACT, why=why)


VALUE, EXACT, WEIGHT = Rule(Need.VALUE), exact("needs every bit"), Rule(Need.WEIGHT)
FACTOR, INDEX, SHAPE = Rule(Need.FACTOR), Rule(Need.INDEX), Rule(Need.SHAPE)
MASK = Rule(Need.MASK, why="a mask")
#: Values over many orders of magnitude, of which each matters as much as the largest: with an
#: absolute bound the gradients of small ones would be all error.
SENSITIVE = exact("an error here is divided or exponentiated")

_table: dict[str, dict[str, Rule]] = {}
_patterns: list[tuple[re.Pattern[str], Rule]] = []


def add_rule(ops: str, **roles: Rule) -> None:
    """Say what the backward of one or more ops (separated by spaces) needs, role by role.

    >>> add_rule("MyActivation", **{"tensors[0]": VALUE})
    >>> find("MyActivation", "tensors[0]").need
    <Need.VALUE: 'value'>
    """
    for op in ops.split():
        _table[op] = {**_table.get(op, {}), **roles}


def add_pattern(pattern: str, rule: Rule) -> None:
    """One rule for all roles of the ops whose names match, unless they have rules."""
    _patterns.append((re.compile(pattern), rule))


def find(op: str, role: str, node: Any = None) -> Rule | None:
    """The rule for a role of an op; None where the table has none.

    node  the op's node, whose options may decide
    """
    roles = _table.get(op)
    if roles is None:
        return next((rule for pattern, rule in _patterns if pattern.search(op)), None)
    rule = roles.get(role)
    if rule is None and role.endswith("]"):
        rule = roles.get(role.partition("[")[0])  # one rule for every tensor of a list
    return rule.pick(node) if rule is not None and rule.pick and node is not None else rule


def operations() -> list[str]:
    """Every op that has rules."""
    return sorted(_table)


def needs(op: str) -> set[Need]:
    """What an op needs of the tensors that it saves.

    >>> add_rule("MyActivation", **{"tensors[0]": VALUE})
    >>> needs("MyActivation")
    {<Need.VALUE: 'value'>}
    """
    return {rule.need for rule in _table.get(op, {}).values()}


def may_probe(op: str, role: str) -> bool:
    """Whether the op's node may be called twice in backward to measure an error's effect."""
    rule = find(op, role)
    return rule is None or rule.probe


def is_two_valued(t: Tensor) -> float | None:
    """The one value other than zero that `t` holds, or None if there are more.

    A dropout's noise on the CPU is such a tensor: 0 or 1 / (1 - p). So is an attention mask
    of 0 and -inf.

    >>> import torch
    >>> is_two_valued(torch.tensor([0.0, 1.25, 0.0, 1.25]))
    1.25
    >>> is_two_valued(torch.tensor([0.0, -math.inf, 0.0]))
    -inf
    >>> is_two_valued(torch.tensor([0.0, 1.25, 2.5]))
    """
    few = t.flatten()[:256] if t.is_contiguous() else t.reshape(-1)[:256]
    for part in (few, t):
        high, low = part.max(), part.min()
        if float(high) != 0 and float(low) != 0:
            return None
        scale = low if float(high) == 0 else high
        if math.isnan(scale) or not bool(((part == 0) | (part == scale)).all()):
            return None
    return float(scale)
