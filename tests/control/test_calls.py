"""A model that is called several times before its optimizer steps, and higher derivatives."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import encke
from encke.control.accumulated import AccumulatedGradients, StepBoundaries


def critic() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.InstanceNorm2d(32, affine=True),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(32 * 16, 64),
        nn.GELU(),
        nn.Linear(64, 1),
    )


Loss = Callable[[nn.Module, Tensor, Tensor], None]


def one_backward(d: nn.Module, real: Tensor, fake: Tensor) -> None:
    (d(fake).mean() - d(real).mean()).backward()


def two_backwards(d: nn.Module, real: Tensor, fake: Tensor) -> None:
    d(fake).mean().backward()
    (-d(real).mean()).backward()


def siamese(d: nn.Module, real: Tensor, fake: Tensor) -> None:
    (d(real) - d(real + 0.1 * fake)).square().mean().backward()


def batches(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    real, fake = torch.randn(2, 64, 1, 16, 16, generator=generator)
    return real + 0.3, fake


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def relative_error(got: list[Tensor], exact: list[Tensor]) -> float:
    change = sum(float((a - b).square().sum()) for a, b in zip(got, exact, strict=True))
    return change / sum(float(b.square().sum()) for b in exact)


@pytest.mark.parametrize("loss", [one_backward, two_backwards, siamese])
def test_the_error_is_small_beside_the_sum_of_calls_that_cancel(loss: Loss) -> None:
    torch.manual_seed(0)
    model = critic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.0, 0.9))
    tape = encke.attach(model, optimizer, tolerance=0.01)
    errors = []
    for step in range(24):
        optimizer.zero_grad()
        loss(model, *batches(step))
        if step >= 12 and step % 4 == 0:
            got = gradients(model)
            optimizer.zero_grad()
            with tape.paused():
                loss(model, *batches(step))
            errors.append(relative_error(got, gradients(model)))
        optimizer.step()
    # Twice the tolerance: single steps scatter, and errors of the stream are estimates.
    assert sum(errors) / len(errors) < 0.02
    assert tape.last_forward[1] > 4 * tape.last_forward[0]


def test_gradients_of_a_loss_that_trains_another_model_do_not_count() -> None:
    """A generator's loss reaches the critic's weights, which are zeroed before its own step."""

    def bounds(with_generator: bool) -> dict[str, float]:
        torch.manual_seed(0)
        model = critic()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
        tape = encke.attach(model, optimizer)
        for step in range(8):
            if with_generator:
                (1e3 * model(batches(step)[1])).mean().backward()
            optimizer.zero_grad()
            one_backward(model, *batches(step))
            optimizer.step()
        return tape.policy.bounds  # type: ignore[attr-defined]

    alone, beside = bounds(False), bounds(True)
    products = [name for name in alone if "Convolution" in name or "Addmm" in name]
    assert len(products) >= 3
    for name in products:
        # Not a thousandth, as the scale of that loss would have it; its dx still counts.
        assert 0.4 < beside[name] / alone[name] < 1.6


@pytest.mark.parametrize("micro", [1, 8])
def test_a_tolerance_is_shared_by_all_micro_batches(micro: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    tape = encke.attach(model, optimizer, slowdown=math.inf)
    x = torch.randn(256, 64)
    weights = model[0].weight, model[2].weight
    errors = []
    for step in range(16):
        with tape.paused():
            exact = torch.autograd.grad(model(x).square().mean(), weights)
        optimizer.zero_grad()
        for _ in range(micro):
            model(x).square().mean().div(micro).backward()
        optimizer.step()
        if step >= 8:
            errors += [
                relative_error([p.grad], [g]) for p, g in zip(weights, exact, strict=True)
            ]
    assert 0.005 < sum(errors) / len(errors) < 0.02


def penalty(d: nn.Module, real: Tensor, fake: Tensor) -> None:
    between = (0.5 * real + 0.5 * fake).requires_grad_()
    (slope,) = torch.autograd.grad(d(between).sum(), between, create_graph=True)
    one = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    (d(fake).mean() - d(real).mean() + 10 * one).backward()


def test_with_a_gradient_penalty_activations_are_exact_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def train(attached: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = critic()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        if attached:
            encke.attach(model, optimizer)
        start = [p.detach().clone() for p in model.parameters()]
        for step in range(4):
            optimizer.zero_grad()
            penalty(model, *batches(step))
            if step:  # the first step is where it is found out
                optimizer.step()
            else:
                optimizer.step()
                with torch.no_grad():
                    for p, before in zip(model.parameters(), start, strict=True):
                        p.copy_(before)
                optimizer.state.clear()
        return [p.detach() for p in model.parameters()]

    plain = train(False)
    with caplog.at_level(logging.WARNING, logger="encke"):
        ours = train(True)
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    said = [r.message for r in caplog.records if "differentiated again" in r.message]
    assert len(said) == 1


def test_second_derivatives_are_those_of_plain_autograd_where_nothing_is_lossy() -> None:
    """A physics-informed loss in double precision, its equation a second derivative."""

    def residual(model: nn.Module) -> list[Tensor]:
        x = torch.linspace(0, 1, 4096, dtype=torch.float64)[:, None].requires_grad_()
        u = model(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        model.zero_grad()
        (ddu + u).square().mean().backward()
        return gradients(model)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    plain = residual(model)
    tape = encke.attach(model, policy=encke.Fixed(encke.Lossless()))
    assert all(torch.equal(a, b) for a, b in zip(plain, residual(model), strict=True))
    tape.detach()
    encke.attach(model)
    residual(model)
    assert all(torch.equal(a, b) for a, b in zip(plain, residual(model), strict=True))


def test_an_optimizer_in_backward_ends_a_step_as_well() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    optimizers = {p: torch.optim.SGD([p], lr=1e-3) for p in model.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    tape = encke.attach(model, list(optimizers.values()))
    for _ in range(3):
        F.mse_loss(model(torch.randn(256, 64)), torch.ones(256, 1)).backward()
    state = tape.policy.state_dict()
    assert state["step"] == 3
    assert state["bounds"]


def test_an_optimizer_that_nobody_steps_does_not_hold_the_controller_up() -> None:
    steps = StepBoundaries(known=True)
    assert steps.forward()
    begun = 0
    for _ in range(600):
        steps.went_back()
        begun += steps.forward()
    assert begun > 300


def test_without_an_optimizer_a_forward_after_a_backward_begins_a_step() -> None:
    steps = StepBoundaries()
    assert steps.forward()
    assert not steps.forward()
    steps.went_back()
    assert steps.forward()


def test_gradients_set_to_zero_in_place_begin_anew() -> None:
    p = nn.Parameter(torch.ones(4))
    seen = AccumulatedGradients()
    seen.watch({"p": p})
    (3 * p).sum().backward()
    assert p.grad is not None
    p.grad.zero_()
    (2 * p).sum().backward()
    assert seen.squares == {"p": 16.0}
    assert len(seen._passes["p"]) == 1
    (2 * p).sum().backward()
    assert seen.squares == {"p": 64.0}
    assert len(seen._passes["p"]) == 2
    seen.close()
    (2 * p).sum().backward()
    assert seen.squares == {"p": 64.0}
