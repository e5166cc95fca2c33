"""Every op for which torch saves a tensor has a rule for each of them, or a reason for none."""

from __future__ import annotations

import re

import pytest
import torch

from encke.tape import Need
from encke.tape.needs import table as rules

_RAW = "_raw_saved_"

#: Functions of encke.head, which torch does not have.
HEAD = {
    "BlockwiseCrossEntropy",
    "LazyCrossEntropy",
    "LazyLinear",
    "LinearCrossEntropy",
    "SharedEmbedding",
}


def every_saved_tensor() -> list[tuple[str, str]]:
    """Op and role of all that torch's own nodes may save."""
    found = set()
    for name in dir(torch._C._functions):
        for attribute in dir(getattr(torch._C._functions, name)):
            if attribute.startswith(_RAW):
                op = re.sub(r"Backward\d*$", "", name)
                found.add((op, attribute.removeprefix(_RAW)))
    return sorted(found)


def test_torch_tells_what_its_nodes_save() -> None:
    found = every_saved_tensor()
    assert len(found) > 600
    assert ("Relu", "result") in found
    assert ("Convolution", "input") in found


def test_every_saved_tensor_has_a_rule() -> None:
    without = [f"{op}.{role}" for op, role in every_saved_tensor() if not rules.find(op, role)]
    assert not without, f"add_rule for these, in lossy_ops.py or exact_ops.py: {without}"


def test_what_needs_every_bit_says_why() -> None:
    for op, role in every_saved_tensor():
        rule = rules.find(op, role)
        assert rule is not None
        if rule.need is Need.EXACT:
            assert rule.why, f"{op}.{role}"


def test_every_rule_is_for_something_that_torch_saves() -> None:
    saved = every_saved_tensor()
    ops = {op for op, _ in saved}
    assert set(rules.operations()) - {"MyActivation", "CheckpointFunction"} - HEAD <= ops


@pytest.mark.parametrize(
    "op", ["Exp", "Div", "Reciprocal", "Rsqrt", "Sqrt", "Log", "LogSoftmax", "Logsumexp"]
)
def test_what_would_be_divided_or_exponentiated_stays_exact(op: str) -> None:
    for other, role in every_saved_tensor():
        rule = rules.find(op, role)
        if other == op and not (op == "Div" and role == "self"):  # there the divisor decides
            assert rule is rules.SENSITIVE
