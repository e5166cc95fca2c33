"""What the tape reports of an error's effect is what the error did."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from watching import Watching

import encke
from encke.tape import Tape
from encke.tape.effects.probe import difference


def checking(bound: encke.Bound) -> Watching:
    """Keeps everything within one bound and the exact tensors beside."""
    return Watching(bound, derive=False, check=True)


LAYERS = {
    "linear with bias": (nn.Linear(48, 32), (4, 24, 48)),
    "linear without": (nn.Linear(48, 32, bias=False), (96, 48)),
    "convolution with bias": (nn.Conv2d(8, 6, 3, padding=1), (4, 8, 16, 16)),
    "layer norm": (nn.LayerNorm(48), (96, 48)),
    "batch norm": (nn.BatchNorm2d(8), (4, 8, 16, 16)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_measured_error_is_that_of_the_parameters_gradients(name: str) -> None:
    layer, shape = LAYERS[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    way = torch.randn(layer(x).shape)

    def gradients(tape: Tape | None) -> tuple[list[Tensor], Tensor]:
        inputs = x.clone().requires_grad_()
        if tape is None:
            output = layer(inputs + 0)
        else:
            with tape:
                output = layer(inputs + 0)
        found = torch.autograd.grad((output * way).sum(), [inputs, *layer.parameters()])
        return list(found[1:]), found[0]

    policy = checking(encke.RangeRelative(0.05))
    plain, flow = gradients(None)
    kept, lossy_flow = gradients(Tape(policy))
    (effect,) = policy.effects
    assert effect.measured is not None
    own, stream = effect.measured
    true = sum(float((a - b).square().sum()) for a, b in zip(plain, kept, strict=True))
    assert own == pytest.approx(true, rel=1e-2)
    passed_on = float((flow - lossy_flow).square().sum() / lossy_flow.square().sum())
    assert stream == pytest.approx(passed_on, rel=1e-2, abs=1e-9)


def test_weights_that_are_no_parameters_of_the_model_have_a_name() -> None:
    weight = torch.randn(48, 48, requires_grad=True)
    policy = checking(encke.RangeRelative(0.05))
    with Tape(policy):
        loss = F.linear(torch.randn(64, 48), weight).square().sum()
    loss.backward()
    products = [e for e in policy.effects if e.products]
    assert [e.parameter for e in products] == ["(top)/Mm.self"]


class Residual(nn.Module):
    """A product with a weight, added to a larger tensor in the same op."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, added: Tensor, x: Tensor) -> Tensor:
        return torch.addmm(added, x + 0, self.weight)


@pytest.mark.parametrize("named", [True, False])
def test_an_input_that_asks_for_a_gradient_is_not_taken_for_the_parameter(named: bool) -> None:
    torch.manual_seed(0)
    model = Residual(nn.Parameter(torch.randn(48, 32)))
    added = torch.randn(256, 32, requires_grad=True)  # larger than the weight
    x = torch.randn(256, 48, requires_grad=True)
    policy = checking(encke.RangeRelative(0.05))
    way = torch.randn(256, 32)
    with Tape(policy, model=model if named else None):
        output = model(added, x)
    kept, _, _ = torch.autograd.grad((output * way).sum(), [model.weight, added, x])
    (effect,) = policy.effects
    assert effect.parameter == ("weight" if named else "Residual/Addmm.mat1")
    assert effect.parameter_square == pytest.approx(float(kept.square().sum()), rel=1e-5)
    assert effect.measured is not None
    true = float((x.detach().t() @ way - kept).square().sum())
    assert effect.measured == pytest.approx((true, 0.0), rel=1e-2)
    assert effect.predicted == pytest.approx(true, rel=0.2)


def test_a_small_gradient_that_flows_on_is_judged_by_itself() -> None:
    large, small = torch.full((8,), 100.0), torch.full((8,), 0.1)
    shaken = small + 0.05
    own, flow, _ = difference([large, small], [large, shaken], parameters=[], onward=[0, 1])
    assert own == 0
    assert flow == pytest.approx(0.25, rel=1e-4)
