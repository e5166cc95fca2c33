"""Every op that has rules gives the gradients of plain autograd: exact, or within bounds."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import rare_op_cases  # noqa: F401 adds to the cases
import torch
import torch.nn.functional as F
from op_cases import CASES, ELSEWHERE, Case
from torch import Tensor, nn

import encke
from encke.tape import Need, Tape
from encke.tape.autograd.nodes import op_name
from encke.tape.needs import table as rules

EVERY = pytest.mark.parametrize("case", CASES, ids=str)


def same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.nan_to_num(7e7), b.nan_to_num(7e7)) and torch.equal(
        a.isnan(), b.isnan()
    )


def ops_of(loss: Tensor) -> set[str]:
    found: set[str] = set()
    seen: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.add(op_name(node))
        stack.extend(n for n, _ in node.next_functions)
    return found


def test_every_op_that_is_not_kept_as_it_is_has_a_case_or_a_reason_for_none() -> None:
    cases = {c.op for c in CASES}
    assert not cases & set(ELSEWHERE)
    packed = {op for op in rules.operations() if rules.needs(op) != {Need.EXACT}}
    assert packed - {"MyActivation"} - cases - set(ELSEWHERE) == set()
    assert cases | set(ELSEWHERE) <= set(rules.operations())


@EVERY
def test_lossless_gradients_are_those_of_plain_autograd_bit_for_bit(case: Case) -> None:
    plain = case.gradients()
    tape = Tape(encke.Fixed(encke.Lossless()))
    kept = case.gradients(tape)
    assert all(same(a, b) for a, b in zip(plain, kept, strict=True))
    assert tape.stored_bytes == tape.plain_bytes == 0


@EVERY
def test_gradients_within_a_bound_are_close_to_the_plain_ones(case: Case) -> None:
    plain = case.gradients()
    kept = case.gradients(Tape(encke.Fixed(encke.RangeRelative(1e-3))))
    for a, b in zip(plain, kept, strict=True):
        if a is None or b is None or not a.isfinite().all():
            assert same(a, b)
            continue
        difference = torch.linalg.vector_norm((a - b).float())
        assert difference <= case.close * torch.linalg.vector_norm(a.float())


@pytest.mark.parametrize("case", [c for c in CASES if c.saves], ids=str)
def test_the_rule_of_the_op_acts(case: Case) -> None:
    torch.manual_seed(0)
    leaves = [case._draw(shape).requires_grad_() for shape in case.inputs]
    weights = [nn.Parameter(case._draw(shape) / 4) for shape in case.weights]
    tape = Tape(encke.Fixed(encke.RangeRelative(1e-3)))
    loss = case.loss(leaves, weights, tape)
    records = [r for r in tape.records if r.site.op == case.op]
    assert case.op in ops_of(loss)
    needs = {rules.find(case.op, r.site.role) for r in records}
    assert records
    assert None not in needs, [str(r.site) for r in records]
    if {rule.need for rule in needs if rule is not None} - {Need.EXACT}:
        assert any(r.how != "exact" for r in records), [(str(r.site), r.why) for r in records]


@pytest.mark.parametrize("bound", [1e-3, 0.1, 0.5])
def test_what_needs_signs_places_and_shapes_only_is_exact_at_any_bound(bound: float) -> None:
    """Values enter the gradients of kernels only, never what flows back to the input."""

    def run(tape: Any) -> Tensor:
        torch.manual_seed(0)
        x = torch.randn(4, 8, 24, 24, requires_grad=True)
        one, other = (nn.Parameter(torch.randn(8, 8, 3, 3) / 8) for _ in range(2))
        with tape:
            y = F.max_pool2d(F.conv2d(x + 0, one).relu_(), 2)
            y = F.leaky_relu(F.conv2d(F.pad(y, (1, 1, 1, 1), mode="reflect"), other), 0.1)
            y = F.relu6(F.avg_pool2d(F.dropout(y.relu(), 0.3), 2) * 9).relu()
            loss = (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum()
        return torch.autograd.grad(loss, x)[0]

    plain = run(contextlib.nullcontext())
    for derive in (True, False):
        policy = encke.Fixed(encke.RangeRelative(bound), derive=derive)
        assert torch.equal(plain, run(Tape(policy)))
