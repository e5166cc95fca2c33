"""The closed form predicts the gradient's error for every kind of product layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import encke
from encke.tape import GradientEffect, SavedTensor, StorageDecision, Tape

LAYERS = {
    "linear": (lambda: nn.Linear(96, 80), (512, 96)),
    "linear without bias": (lambda: nn.Linear(96, 80, bias=False), (512, 96)),
    "linear over sequences": (lambda: nn.Linear(64, 48), (16, 40, 64)),
    "1-D": (lambda: nn.Conv1d(8, 12, 5, padding=2), (16, 8, 200)),
    "2-D": (lambda: nn.Conv2d(8, 12, 3), (16, 8, 24, 24)),
    "2-D padded": (lambda: nn.Conv2d(8, 12, 3, padding=1), (16, 8, 16, 16)),
    "2-D strided": (lambda: nn.Conv2d(8, 12, 3, stride=2, padding=1), (16, 8, 25, 25)),
    "2-D dilated": (lambda: nn.Conv2d(8, 12, 3, dilation=2, padding=2), (16, 8, 20, 20)),
    "2-D grouped": (lambda: nn.Conv2d(16, 32, 3, groups=4, padding=1), (16, 16, 16, 16)),
    "2-D depthwise": (lambda: nn.Conv2d(32, 32, 3, groups=32, padding=1), (16, 32, 16, 16)),
    "2-D pointwise": (lambda: nn.Conv2d(32, 48, 1), (16, 32, 14, 14)),
    "3-D": (lambda: nn.Conv3d(4, 6, 3, padding=1), (8, 4, 10, 10, 10)),
    "1-D transposed": (lambda: nn.ConvTranspose1d(8, 12, 4, stride=2, padding=1), (16, 8, 100)),
    "2-D transposed": (
        lambda: nn.ConvTranspose2d(16, 12, 3, stride=2, padding=1, output_padding=1),
        (16, 16, 12, 12),
    ),
    "2-D transposed grouped": (
        lambda: nn.ConvTranspose2d(16, 24, 3, stride=2, groups=4),
        (16, 16, 12, 12),
    ),
}


class Checked(encke.Fixed):
    """A fixed bound with the exact tensor kept beside, so that every step measures."""

    def treat(self, sight: SavedTensor) -> StorageDecision:
        from dataclasses import replace

        return replace(super().treat(sight), observe=True, check=True)


def effects_of(
    layer: nn.Module, x: Tensor, bound: encke.Bound, steps: int
) -> list[GradientEffect]:
    tape = Tape(Checked(bound, codec="entropy"), model=layer)
    seen: list[GradientEffect] = []
    tape.listeners.append(seen.append)
    torch.manual_seed(3)
    weight = None
    for _ in range(steps):
        with tape:
            y = layer(x * 1 if x.requires_grad else x)
        weight = torch.randn_like(y) if weight is None else weight
        (y * weight).sum().backward()
    return seen


@pytest.mark.parametrize("name", LAYERS)
def test_measured_gradient_error_is_the_predicted_one(name: str) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer, x = make(), torch.randn(shape)
    effects = effects_of(layer, x, encke.RangeRelative(0.05), steps=6)
    assert len(effects) == 6
    predicted = sum(e.predicted for e in effects)
    measured = sum(e.measured[0] for e in effects if e.measured is not None)
    assert effects[0].products > 0
    assert measured == pytest.approx(predicted, rel=0.1)


def test_zeros_add_no_error() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 96) * (torch.rand(256, 96) < 0.25)
    effects = effects_of(nn.Linear(96, 80), x, encke.RangeRelative(0.05), steps=6)
    predicted = sum(e.predicted for e in effects)
    measured = sum(e.measured[0] for e in effects if e.measured is not None)
    error = effects[0].error
    assert effects[0].mean_square == pytest.approx(error**2 / 3 * 0.25, rel=0.1)
    assert measured == pytest.approx(predicted, rel=0.1)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(16), nn.GroupNorm(4, 16), nn.GELU(), nn.SiLU(), nn.Softmax(dim=1)]
)
def test_probe_predicts_what_other_ops_do(layer: nn.Module) -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 16, 16, 16, requires_grad=True)
    effects = effects_of(layer, x, encke.RangeRelative(0.01), steps=4)
    assert effects[0].products == 0
    predicted = sum(e.stream for e in effects)
    measured = sum(e.measured[1] for e in effects if e.measured is not None)
    assert measured == pytest.approx(predicted, rel=0.35)


def test_derived_input_of_a_convolution_is_predicted_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3)
    )
    effects = effects_of(model, torch.randn(16, 8, 20, 20), encke.RangeRelative(0.03), steps=6)
    derived = [e for e in effects if e.consumer.module == "3"]
    assert {str(e.site) for e in derived} == {"1/NativeBatchNorm.input"}
    predicted = sum(e.predicted for e in derived)
    measured = sum(e.measured[0] for e in derived if e.measured is not None)
    assert measured == pytest.approx(predicted, rel=0.1)
