"""Ops whose tensors do not lie under the highest point of a step are left to autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import encke
from encke.tape.cost.summit import StepSummit

MB = 1 << 20


class Memory:
    """Live bytes that a test sets."""

    def __init__(self) -> None:
        self.high = 0

    def __call__(self) -> int:
        return self.high


def a_pass(
    summit: StepSummit,
    memory: Memory,
    *,
    forward: list[int],
    backward: list[int],
    rest: int,
    end: int | None = None,
) -> None:
    """A pass of ops that save 10 MB each and store 1 of them, with these live bytes at most."""
    for order, high in enumerate(forward, 1):
        if order >= summit.tail:
            break
        memory.high = high
        summit.forward(order, stored=order * MB, plain=order * 10 * MB)
    memory.high = forward[-1] if end is None else end
    summit.end_forward()
    for order, high in zip(range(len(forward), 0, -1), backward, strict=True):
        if order < summit.tail:
            memory.high = high
            summit.backward(order)
    memory.high = rest


def followed(forward: list[int], backward: list[int], rest: int) -> tuple[StepSummit, Memory]:
    memory = Memory()
    summit = StepSummit(memory)
    summit.begin(ordinary=False)
    for _ in range(2):
        a_pass(summit, memory, forward=forward, backward=backward, rest=rest)
        summit.begin(ordinary=True)
    return summit, memory


OPS = 40
FLAT = [order * MB for order in range(1, OPS + 1)]


def test_a_summit_late_in_backward_leaves_the_last_ops() -> None:
    backward = [50 * MB] * (OPS - 4) + [300 * MB] * 4
    summit, _ = followed(FLAT, backward, rest=50 * MB)
    assert summit.has_tail
    # 9 MB more for each op must stay below 300 - 50 MB.
    left = OPS - summit.tail
    assert 18 <= left <= 250 / 9
    assert summit.tail_bytes == pytest.approx(left * 10 * MB, rel=0.1)


def test_a_summit_between_forward_and_backward_leaves_none() -> None:
    backward = [300 * MB] * 4 + [50 * MB] * (OPS - 4)
    summit, _ = followed(FLAT, backward, rest=50 * MB)
    assert not summit.has_tail


def test_a_tail_that_makes_the_summit_is_shortened_until_it_does_not() -> None:
    backward = [50 * MB] * (OPS - 4) + [300 * MB] * 4
    summit, memory = followed(FLAT, backward, rest=50 * MB)
    places = [summit.tail]
    for _ in range(4):
        a_pass(summit, memory, forward=FLAT, backward=backward, rest=50 * MB, end=400 * MB)
        summit.begin(ordinary=True)
        places.append(summit.tail)
    assert places == sorted(places)
    assert places[-1] == math.inf


def test_without_a_pool_there_is_no_tail() -> None:
    summit, _ = followed([0] * OPS, [0] * OPS, rest=0)
    assert not summit.has_tail
    assert not summit.is_on


def test_the_choice_goes_into_a_checkpoint() -> None:
    backward = [50 * MB] * (OPS - 4) + [300 * MB] * 4
    summit, memory = followed(FLAT, backward, rest=50 * MB)
    again = StepSummit(memory)
    again.load_state_dict(summit.state_dict())
    assert (again.tail, again.tail_bytes) == (summit.tail, summit.tail_bytes)


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)]
    return nn.Sequential(*layers)


def test_what_the_last_ops_save_is_exact_and_counted() -> None:
    x = torch.randn(256, 64)
    model = net()
    tape = encke.attach(model, policy=encke.Fixed(encke.RmsRelative(0.2)))
    plain: dict[int, Tensor] = {}
    for name in range(2):
        model.zero_grad()
        model(x).square().sum().backward()
        plain[name] = model[7][0].weight.grad.clone()  # type: ignore[index, union-attr]
    tape.summit.is_on = True
    tape.summit.tail, tape.summit.tail_bytes = 9, 4 * 256 * 64 * 4
    model.zero_grad()
    loss = model(x).square().sum()
    last = [record for record in tape.records if record.site.module == "(last ops)"]
    assert [record.stored for record in last] == [tape.summit.tail_bytes]
    assert tape.last_forward[0] > tape.summit.tail_bytes
    loss.backward()
    assert tape.stored_bytes == 0
    exact = net()
    exact(x).square().sum().backward()
    expected = exact[7][0].weight.grad  # type: ignore[index, union-attr]
    found = model[7][0].weight.grad  # type: ignore[index, union-attr]
    assert torch.equal(found, expected)
    assert not torch.equal(plain[0], expected)
