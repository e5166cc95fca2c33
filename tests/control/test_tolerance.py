"""The true error of the gradients is the tolerance, and measuring it changes nothing else."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import encke
from encke.control.calibrate import Calibration, Upstream
from encke.control.reference import Reference
from encke.control.sensitivity import Part, Share
from encke.tape.effects.gradient_samples import GradientError


class Block(nn.Module):
    """A depthwise convolution, a norm over channels and two products, as ConvNeXt has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.outer(F.gelu(self.inner(y))).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 4))
    return nn.Sequential(nn.Conv2d(2, 24, 4, 4), Block(24), Block(24), *pooled)


def signals() -> nn.Module:
    """Convolutions in one dimension, batch norms and ReLUs."""
    layers: list[nn.Module] = []
    for inside, outside in ((2, 24), (24, 24), (24, 32)):
        layers += [nn.Conv1d(inside, outside, 5, padding=2, bias=False)]
        layers += [nn.BatchNorm1d(outside), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4))


def batch(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """Waves of four lengths under noise, and which they are."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (shape[0],), generator=generator)
    place = torch.arange(shape[-1]) / shape[-1]
    wave = torch.sin(6 * (labels.view(-1, 1) + 1) * place)
    wave = wave.view(shape[0], *(1,) * (len(shape) - 2), shape[-1])
    return wave + torch.randn(shape, generator=generator), labels


def true_errors(
    model: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, ...], tolerance: float
) -> dict[str, float]:
    """By parameter: the true error over its reference, a mean over some steps."""
    tape = encke.attach(model, optimizer, tolerance=tolerance, slowdown=math.inf)
    reference = Reference("step", [optimizer])
    sums: dict[str, float] = {}
    looks = range(30, 70, 4)
    for step in range(1, max(looks) + 1):
        x, y = batch(shape, step)
        exact = {}
        if step in looks:
            buffers = copy.deepcopy(dict(model.named_buffers()))
            with tape.paused():
                F.cross_entropy(model(x), y).backward()
            exact = {name: p.grad.clone() for name, p in model.named_parameters()}
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
            optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for name, gradient in exact.items():
            parameter = model.get_parameter(name)
            reference.see(name, float(gradient.square().sum()))
            error = float((parameter.grad - gradient).square().sum())
            scale = reference.of(name, parameter)
            sums[name] = sums.get(name, 0.0) + error / scale / len(looks)
        optimizer.step()
        optimizer.zero_grad()
    return sums


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0.003, 0.03])
@pytest.mark.parametrize(
    ("make", "shape", "optimize"),
    [
        (convnext, (16, 2, 32, 32), lambda p: torch.optim.AdamW(p, lr=1e-3)),
        (signals, (32, 2, 128), lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)),
    ],
)
def test_the_true_error_is_the_tolerance(
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    optimize: Callable[..., torch.optim.Optimizer],
    tolerance: float,
) -> None:
    torch.manual_seed(0)
    model = make()
    errors = true_errors(model, optimize(model.parameters()), shape, tolerance)
    weights = [e for n, e in errors.items() if model.get_parameter(n).ndim > 1]
    mean = sum(weights) / len(weights) / tolerance
    worst = max(weights) / tolerance
    # Too small an error costs bytes, not accuracy; with a large tolerance gradients change
    # faster between two measurements than bounds are loosened.
    assert 0.25 < mean < 1.8, errors
    assert worst < 5, errors


def train(model: nn.Module, steps: int, **options: object) -> tuple[encke.Tape, Tensor]:
    """The tape, and every gradient and buffer after each step in one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tape = encke.attach(model, optimizer, slowdown=math.inf, **options)
    seen = []
    torch.manual_seed(3)
    for step in range(steps):
        x, y = batch((16, 2, 128), step)
        optimizer.zero_grad()
        F.cross_entropy(F.dropout(model(x), 0.1), y).backward()
        seen += [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        seen += [b.flatten().float() for b in model.buffers()]
        seen.append(torch.rand(1))
        optimizer.step()
    return tape, torch.cat([one.clone() for one in seen])


def test_measuring_changes_no_gradient_no_buffer_and_no_random_number() -> None:
    torch.manual_seed(0)
    model = signals()
    other = copy.deepcopy(model)
    tape, measured = train(model, 2)
    assert tape.policy.backward_again.is_on, "the second step is a measured one"
    hooked = other[0].weight.register_hook(lambda _: None)  # then nothing is measured
    tape, plain = train(other, 2)
    hooked.remove()
    assert "hooks" in tape.policy.backward_again.reason
    assert "not measured: 0.weight has hooks" in tape.summary()
    assert torch.equal(measured, plain)
    assert not any(p._backward_hooks for p in other.parameters())


def test_a_measured_error_is_told_and_saved() -> None:
    torch.manual_seed(0)
    rows: list[dict[str, object]] = []
    model = signals()
    tape, _ = train(model, 4, log=rows.append)
    told = tape.policy.told()
    assert told["measured"] > 0
    assert told["worst"] >= tape.policy.calibration.measured
    assert told["parameter"] in dict(model.named_parameters())
    assert "measured" in tape.summary().splitlines()[-1]
    steps = [row for row in rows if row["kind"] == "step"]
    assert steps[-1]["tolerance"] == 0.01
    assert steps[-1]["error_measured"] is not None
    saved = tape.state_dict()
    again = encke.attach(signals(), tolerance=0.01)
    again.load_state_dict(saved)
    assert again.policy.calibration.factor == tape.policy.calibration.factor
    assert again.policy.told() | {"price": 0} == told | {"price": 0}


def exact_errors(
    model: nn.Module, tape: encke.Tape, loss_of: Callable[[], Tensor]
) -> tuple[dict[str, GradientError], dict[str, float]]:
    """What a measured step says of its gradients, and their true errors."""
    model.zero_grad()
    loss_of().backward()
    found = tape.policy.backward_again.finish()
    lossy = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with tape.paused():
        loss_of().backward()
    true = {n: float((p.grad - lossy[n]).square().sum()) for n, p in model.named_parameters()}
    return found, true


def test_calls_whose_gradients_cancel_are_measured_together() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(2, 32, 5), nn.Tanh(), nn.Conv1d(32, 32, 5), nn.Tanh(), nn.Flatten()
    )
    model.append(nn.Linear(32 * 120, 1))
    tape = encke.attach(model, slowdown=math.inf)
    x, _ = batch((16, 2, 128), 0)
    y = x + 0.3 * torch.randn_like(x)

    def loss_of() -> Tensor:
        return model(x).mean() - model(y).mean()

    exact_errors(model, tape, loss_of)  # the first step is observed
    found, true = exact_errors(model, tape, loss_of)
    assert found["2.weight"].error == pytest.approx(true["2.weight"], rel=0.5)
    assert found["0.weight"].error == pytest.approx(true["0.weight"], rel=0.7)


def test_what_gates_leave_out_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = signals()
    x, y = batch((32, 2, 128), 0)
    tape = encke.attach(model, slowdown=math.inf)
    # Bounds so small that gates alone make an error.
    fine = lambda demands, _variance: dict.fromkeys(demands, 1e-5)  # noqa: E731
    monkeypatch.setattr(tape.policy, "_fill", fine)
    monkeypatch.setattr(tape.policy.gates, "is_open", lambda _name: True)

    def loss_of() -> Tensor:
        return F.cross_entropy(model(x), y)

    exact_errors(model, tape, loss_of)
    found, true = exact_errors(model, tape, loss_of)
    for name in ("0.weight", "3.weight"):
        left_out = found[name].left_out
        assert left_out is not None
        assert found[name].error < 0.01 * true[name]
        assert 0.3 < left_out / true[name] < 3


def test_a_loss_with_terms_in_the_weights_is_measured_all_the_same() -> None:
    torch.manual_seed(0)
    model = signals()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    tape = encke.attach(model, optimizer, slowdown=math.inf)
    for step in range(12):
        x, y = batch((16, 2, 128), step)
        optimizer.zero_grad()
        decay = sum(p.square().sum() for p in model.parameters())
        (F.cross_entropy(model(x), y) + 10 * decay).backward()
        optimizer.step()
    measured = tape.policy.calibration.measured
    assert measured is not None
    assert measured < 0.1, "the weights' own terms are no error"


def test_weights_raise_what_counts_for_a_parameter_above_the_cap() -> None:
    calibration = Calibration()
    found = {name: GradientError(0.01, 1.0) for name in ("a.weight", "b.weight", "c.weight")}
    found["b.weight"] = GradientError(0.3, 1.0)
    scales = dict.fromkeys(found, 1.0)
    calibration.see(found, scales, {}, tolerance=0.01, predicted=0.1, early=True)
    assert calibration.worst == ("b.weight", 0.3)
    assert set(calibration.weights) == {"b.weight"}
    shares = [Share(1, 0.5, "a.weight"), Share(2, 0.5, "b.weight")]
    upstream = Upstream(shares, calibration.weights)
    own = calibration.sensitivity([Part(1.0, 0.0, "b.weight", 2)], upstream)
    other = calibration.sensitivity([Part(1.0, 0.0, "a.weight", 1)], upstream)
    flow = calibration.sensitivity([Part(0.0, 1.0, "c.weight", 3)], upstream)
    before = calibration.sensitivity([Part(0.0, 1.0, "a.weight", 1)], upstream)
    assert own == pytest.approx(20.0)
    assert flow == pytest.approx(10.5)
    assert other == before == 1.0
