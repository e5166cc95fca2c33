"""Ops that keep nothing are known from an earlier pass, and passed over."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import encke
from encke.tape.cost.previous_pass import Function, PreviousPass


class Net(nn.Module):
    def __init__(self, *, twisted: bool = False) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
        self.twisted = twisted

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x).tanh() + x
        if self.twisted:
            y = y.sin()
        z = self.two(y).view(-1, 8, 8).transpose(1, 2)
        return (z * 2).sigmoid().sum()


def trained(model: Net, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_passed_over_ops_change_neither_gradients_nor_what_is_counted() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(64, 64)
    tape = encke.attach(model, policy=encke.Fixed(encke.Lossless()))
    before = trained(model, x), tape.last_forward, {r.site for r in tape.records}
    assert tape._previous._known
    after = trained(model, x), tape.last_forward, {r.site for r in tape.records}
    assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))
    assert before[1:] == after[1:]


def test_another_graph_or_shape_is_looked_at_anew() -> None:
    model = Net()
    tape = encke.attach(model, policy=encke.Fixed(encke.Lossless()))
    trained(model, torch.randn(64, 64))
    known = dict(tape._previous._known)
    trained(model, torch.randn(96, 64))
    assert tape._previous._known.keys() == known.keys()
    assert tape._previous._known != known  # the shapes are the new ones
    model.twisted = True
    trained(model, torch.randn(96, 64))
    assert len(tape._previous._known) <= len(known) + 1
    assert tape._previous._failures == 2


def test_a_function_that_shares_a_storage_with_one_that_keeps_it_is_not_passed_over() -> None:
    previous = PreviousPass()
    previous.begin(0)
    previous.note(0, Function((int,), (1,), left={7: 100}))
    previous.note(1, Function((int,), (1,), left={8: 100}))
    previous.keeps(7)
    previous.end()
    assert set(previous._known) == {1}
    previous.begin(1)  # other places are left alone from now on
    assert not previous._known
