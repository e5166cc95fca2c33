"""What is not worth its time is left to autograd. The clock of these tests is a made one."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import encke
from encke.tape.cost import pace as pacing
from encke.tape.cost.pace import SMALL, Pace
from encke.tape.policy import Site

LARGE, SLOW = Site("large", "Mm", "self"), Site("slow", "Mm", "self")


class Clock:
    """Time that passes when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 0.0
        monkeypatch.setattr(pacing, "now", lambda: self.time)
        monkeypatch.setattr(pacing, "seconds_to_watch", lambda: 0.0)

    def a_pass(self, pace: Pace, *, rest: float, costs: dict[Site, tuple[float, int]]) -> None:
        pace.begin()
        pace.ordinary = True
        self.time += rest
        for site, (seconds, saved) in costs.items():
            self.time += seconds
            pace.spend(seconds)
            pace.spend_on(site, seconds, saved)
        pace.holds(1 << 20, 64 << 20)


def test_the_places_that_save_the_fewest_bytes_a_second_are_left_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, pace = Clock(monkeypatch), Pace(0.3)
    for _ in range(3):
        costs = {LARGE: (0.1, 60 << 20), SLOW: (0.4, 1 << 20)}
        clock.a_pass(
            pace, rest=1.0, costs={s: c for s, c in costs.items() if not pace.leaves(s)}
        )
    assert pace.leaves(SLOW)
    assert not pace.leaves(LARGE)
    assert not pace.aside


def test_nothing_is_left_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch), Pace(0.3)
    for _ in range(8):
        clock.a_pass(pace, rest=1.0, costs={LARGE: (0.1, 60 << 20), SLOW: (0.1, 1)})
    assert not pace.left


def test_where_little_would_be_saved_in_time_the_tape_stands_aside_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, pace = Clock(monkeypatch), Pace(0.3)
    for _ in range(3):
        clock.a_pass(pace, rest=0.3, costs={LARGE: (0.4, 60 << 20)})
    assert "0.3 is allowed" in pace.aside
    again = Pace(0.3)
    again.load_state_dict(pace.state_dict())
    assert (again.aside, again.left) == (pace.aside, pace.left)


def test_a_pass_crowded_with_small_tensors_passes_over_them_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, pace = Clock(monkeypatch), Pace(0.3)
    clock.a_pass(pace, rest=0.0, costs={Site(str(i), "Mm", "self"): (0.3, 1) for i in range(9)})
    assert pace.smallest > SMALL


def test_without_a_limit_nothing_is_ever_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch), Pace(None)
    for _ in range(4):
        clock.a_pass(pace, rest=0.0, costs={LARGE: (1.0, 1), SLOW: (1.0, 0)})
    assert (pace.left, pace.aside, pace.smallest) == (0, "", SMALL)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.GELU())


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_a_model_whose_tape_stands_aside_trains_as_without_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = torch.randn(1024, 64)
    plain = gradients(net(), x)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    tape = encke.attach(model, optimizer, slowdown=1e-9)
    with caplog.at_level(logging.INFO, logger="encke"):
        for _ in range(8):
            got = gradients(model, x)
            optimizer.step()
    assert tape.aside
    assert all(torch.equal(a, b) for a, b in zip(plain, got, strict=True))
    assert tape.stored_bytes == 0
    assert tape.last_forward[0] == tape.last_forward[1]
    said = [r.message for r in caplog.records if "goes on without compression" in r.message]
    assert len(said) == 1


def test_what_is_left_to_autograd_is_not_stored_a_second_time_for_others() -> None:
    model = net()
    tape = encke.attach(model)
    x = torch.randn(1024, 64)
    gradients(model, x)
    tape.pace._left = {r.site for r in tape.records if r.how == "lossy" and r.site.op == "Gelu"}
    assert tape.pace.left
    loss = model(x).square().mean()
    stored, plain = tape.last_forward
    left = sum(r.plain for r in tape.records if "not worth the time" in r.why)
    assert left <= stored < plain
    loss.backward()
    assert tape.stored_bytes == 0  # though `loss` holds the graph


def test_small_tensors_stay_with_autograd_and_are_counted() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 512), nn.Tanh())
    tape = encke.attach(model, policy=encke.Fixed(encke.RmsRelative(0.1)))
    loss = model(torch.randn(16, 8)).sum()
    small = [r for r in tape.records if r.why == "small"]
    assert len(small) == 1
    # The two linear layers' inputs; the first Tanh's result is the second's input.
    assert small[0].stored >= 2 * 16 * 8 * 4
    loss.backward()


def test_a_small_sparse_matrix_stays_with_autograd() -> None:
    matrix, x = torch.eye(8).to_sparse(), torch.randn(8, 8, requires_grad=True)
    with encke.activations(encke.RmsRelative(0.1)):
        loss = torch.sparse.mm(matrix, x.tanh()).sum()
    loss.backward()
    assert x.grad is not None
