"""The error of a weight's gradient: what the closed form says, and what is measured."""

from __future__ import annotations

import csv
from pathlib import Path

import picture
import torch
from matplotlib.figure import Figure

import encke

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "tape_theory.csv"


def one_layer(bounds: list[float]) -> tuple[list[float], list[float]]:
    """Predicted and measured ‖ΔdW‖²/‖dW‖² of a 3×3 convolution behind ReLU, by bound."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 16, 20, 20, generator=generator).relu()
    weight = torch.randn(32, 16, 3, 3, generator=generator, requires_grad=True)
    gradient = torch.randn(16, 32, 18, 18, generator=generator)

    def weight_gradient(values: torch.Tensor) -> torch.Tensor:
        out = torch.nn.functional.conv2d(values, weight)
        return torch.autograd.grad(out, weight, gradient)[0]

    exact, products = weight_gradient(x), 16 * 3 * 3
    predicted, measured = [], []
    for bound in bounds:
        packed = encke.compress(
            x, encke.Absolute(bound), codec="fixed", dither=True, seed=1, keep_nonzero=True
        )
        true = weight_gradient(packed.decompress()) - exact
        mean_square = bound**2 / 3 * float((x > 0).float().mean())
        expected = mean_square * products * float(gradient.square().sum())
        predicted.append(expected / float(exact.square().sum()))
        measured.append(float(true.square().sum() / exact.square().sum()))
    return predicted, measured


def layers(path: Path = RESULTS) -> dict[str, list[tuple[float, float]]]:
    """(predicted, measured) of every product layer in the results, by model."""
    found: dict[str, list[tuple[float, float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["kind"] == "product":
                pair = float(row["predicted"]), float(row["measured"])
                found.setdefault(row["model"], []).append(pair)
    return found


def draw() -> Figure:
    drawn = picture.figure(height=3.6)
    left, right = drawn.subplots(1, 2)
    bounds = [2.0**k for k in range(-9, 2)]
    predicted, measured = one_layer(bounds)
    left.plot(bounds, predicted, "-", color="black", label="closed form")
    left.plot(bounds, measured, "o", color=picture.BLUE, label="measured")
    picture.label(
        left,
        title="one convolution, as the bound grows",
        across="bound e, in units of the input",
        up="‖ΔdW‖² / ‖dW‖²",
    )
    for (model, pairs), colour, marker in zip(
        layers().items(), (picture.ORANGE, picture.BLUE, picture.GREEN), "os^", strict=False
    ):
        across, up = zip(*pairs, strict=True)
        name = f"{model}, {len(pairs)} layers"
        right.plot(across, up, marker, color=colour, label=name, markersize=4, alpha=0.7)
    ends = right.get_xlim()
    right.plot(ends, ends, ":", color="black")
    picture.label(
        right,
        title="every product layer of two networks in training",
        across="predicted",
        up="measured",
    )
    for axes in (left, right):
        axes.set(xscale="log", yscale="log")
        axes.legend(frameon=False, fontsize=8)
    return drawn
