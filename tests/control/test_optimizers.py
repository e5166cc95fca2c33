"""Optimizers that compare losses get exact activations, however they come to the model."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import encke
from encke.control.hooks import hooks_of
from encke.control.optimizers import LosslessFor, compares_losses


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )


def minimise(model: nn.Module, optimizer: Any, *, steps: int = 8) -> list[float]:
    torch.manual_seed(1)
    x = torch.randn(512, 16)
    y = x.sin().sum(1, keepdim=True)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(steps)]


def lbfgs(model: nn.Module) -> torch.optim.LBFGS:
    return torch.optim.LBFGS(model.parameters(), max_iter=10, line_search_fn="strong_wolfe")


@pytest.mark.parametrize("told", [True, False])
def test_lbfgs_takes_the_same_steps_with_a_tape(
    told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = network()
    twin = copy.deepcopy(model)
    expected = minimise(twin, lbfgs(twin))
    optimizer = lbfgs(model)
    tape = encke.attach(model, optimizer if told else None)
    with caplog.at_level(logging.WARNING, "encke"):
        assert minimise(model, optimizer) == expected
    said = [r.message for r in caplog.records if "LBFGS compares the losses" in r.message]
    assert len(said) <= 1  # once, at attach or at the first step
    assert tape.step > 8
    assert isinstance(tape.policy, LosslessFor)


def test_lbfgs_after_adam_is_lossless_and_adam_after_it_is_not() -> None:
    model = network()
    adam = torch.optim.Adam(model.parameters())
    tape = encke.attach(model, adam)
    minimise(model, adam)
    twin, learnt = copy.deepcopy(model), tape.state_dict()
    expected = minimise(twin, lbfgs(twin), steps=2)
    assert minimise(model, lbfgs(model), steps=2) == expected
    assert tape.state_dict()["policy"] == learnt["policy"]  # a checkpoint has it all the same
    minimise(model, adam, steps=1)
    assert isinstance(tape.policy, encke.Adaptive)


def test_a_budget_stays_around_a_lossless_policy() -> None:
    model = network()
    tape = encke.attach(model, lbfgs(model), budget="1GiB")
    assert isinstance(tape.policy.inner, LosslessFor)  # type: ignore[attr-defined]


def test_a_policy_that_was_given_stays_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    policy = encke.Fixed(encke.RangeRelative(0.02))
    with caplog.at_level(logging.WARNING, "encke"):
        tape = encke.attach(model, lbfgs(model), policy=policy)
    assert tape.policy is policy
    assert "leave the policy out" in caplog.text


class LineSearch(torch.optim.SGD):
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


class SharpnessAware(torch.optim.SGD):
    """As SAM: a closure may be given, and gradients, not losses, are what it uses."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Wrapper(torch.optim.Optimizer):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


def test_optimizers_that_need_a_closure_are_recognised() -> None:
    parameters = [nn.Parameter(torch.zeros(2))]
    assert compares_losses(torch.optim.LBFGS(parameters))
    assert compares_losses(LineSearch(parameters))
    assert compares_losses(Wrapper(LineSearch(parameters)))
    assert not compares_losses(SharpnessAware(parameters))
    for kind in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Rprop", "NAdam", "Adafactor"):
        assert not compares_losses(getattr(torch.optim, kind)(parameters))


def test_steps_are_those_of_the_optimizer_not_calls() -> None:
    model = network()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)  # type: ignore[index]
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)  # type: ignore[index]
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    encke.attach(model, [first, second])
    for _ in range(3):
        for _ in range(4):  # accumulation
            model(torch.randn(8, 16)).sum().backward()
        for optimizer in (first, second, stranger):
            optimizer.step()
    hooks = hooks_of(model)
    assert hooks is not None
    assert hooks.steps is not None
    assert hooks.steps.count == 3
    assert hooks.root_calls == 12
