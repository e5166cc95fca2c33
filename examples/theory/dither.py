"""What dither does to the error: no part of it follows the value, so sums lose it."""

from __future__ import annotations

import picture
import torch
from matplotlib.figure import Figure
from torch import Tensor

import encke

BOUND = 0.5  # of values whose deviation is 1


def error(x: Tensor, *, dither: bool, seed: int = 0) -> Tensor:
    """Decoded less true, through the codec."""
    packed = encke.compress(x, encke.Absolute(BOUND), codec="fixed", dither=dither, seed=seed)
    return packed.decompress() - x


def mean_errors(*, dither: bool, counts: list[int], repeats: int = 40) -> list[float]:
    """Root mean square error of the mean of so many values, which are positive and small.

    Such as ReLU leaves: half of a gaussian, for which a bound of 0.5 is coarse.
    """
    found = []
    for count in counts:
        generator = torch.Generator().manual_seed(count)
        squares = [
            float(error(x, dither=dither, seed=k).double().mean() ** 2)
            for k in range(repeats)
            for x in [torch.randn(count, generator=generator).abs()]
        ]
        found.append((sum(squares) / repeats) ** 0.5)
    return found


def draw() -> Figure:
    drawn = picture.figure(height=3.2)
    first, second, third = drawn.subplots(1, 3)
    x = torch.linspace(-2, 2, 24_000)
    shown = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))[:1500]
    for axes, dither, colour, title in (
        (first, False, picture.GREY, "rounded"),
        (second, True, picture.BLUE, "with subtractive dither"),
    ):
        missed = error(x, dither=dither)
        axes.scatter(x[shown], missed[shown], s=3, color=colour, alpha=0.5, rasterized=True)
        middle, mean = x.view(-1, 200).mean(1), missed.view(-1, 200).mean(1)
        axes.plot(
            middle, mean, color=picture.RED, linewidth=1.6, label="mean of 200 neighbours"
        )
        axes.set_ylim(-0.6, 0.6)
        picture.label(axes, title=title, across="value", up="error")
    first.legend(frameon=False, fontsize=8, loc="upper left")
    counts = [4**k for k in range(1, 10)]
    for dither, colour, name in (
        (False, picture.GREY, "rounded"),
        (True, picture.BLUE, "dithered"),
    ):
        third.plot(
            counts, mean_errors(dither=dither, counts=counts), "o-", color=colour, label=name
        )
    expected = [BOUND / (3 * count) ** 0.5 for count in counts]
    third.plot(counts, expected, ":", color="black", label="e / √(3N)")
    third.set(xscale="log", yscale="log")
    picture.label(third, title="error of a mean of N values", across="N")
    third.legend(frameon=False, fontsize=8)
    return drawn
