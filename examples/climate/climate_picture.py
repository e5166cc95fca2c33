"""Maps of what each way misses in one year, and how large its errors are over all years."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import picture
from downscaling import Downscaling
from torch import Tensor

LOOKS = (
    (picture.ORANGE, "-"),
    (picture.GREEN, "-"),
    (picture.SKY, "-"),
    (picture.GREY, "-"),
    (picture.BLUE, "--"),
)


def draw(
    guesses: Mapping[str, Tensor], truth: Tensor, place: Downscaling, *, out: Path
) -> None:
    """Writes an svg of the last year and of all; `guesses` are fields by way."""
    drawn = picture.figure(height=7)
    grid = drawn.add_gridspec(3, 2)
    maps = [("anomaly of the last year", truth[-1] - place.climatology, 3.0)]
    maps += [
        (f"error: {way}", guess[-1] - truth[-1], 1.0)
        for way, guess in guesses.items()
        if way not in ("interpolation", "regression")
    ]
    for number, (title, field, limit) in enumerate(maps):
        axes = drawn.add_subplot(grid[number // 2, number % 2])
        shown = axes.imshow(
            field.numpy(),
            origin="lower",
            cmap="PuOr_r",
            vmin=-limit,
            vmax=limit,
            extent=(0, 360, -90, 90),
            aspect="auto",
        )
        picture.label(axes, title=title)
        axes.grid(visible=False)
        axes.set_xticks([0, 90, 180, 270, 360], ["0°", "90°E", "180°", "90°W", "0°"])
        axes.set_yticks([-60, 0, 60], ["60°S", "0°", "60°N"])
        drawn.colorbar(shown, ax=axes).set_label("kelvin", fontsize=8)
    axes = drawn.add_subplot(grid[2, :])
    edges = np.linspace(0, 4, 81)
    for (way, guess), (colour, line) in zip(guesses.items(), LOOKS, strict=True):
        missed = (guess - truth).abs().flatten().numpy()
        share = [max(float((missed > edge).mean()), 1e-7) for edge in edges]
        axes.plot(edges, share, line, color=colour, label=way, linewidth=1.8)
    picture.label(axes, across="error, kelvin", up="share of points beyond it")
    axes.set(yscale="log", ylim=(1e-5, 1), xlim=(0, 4))
    axes.legend(frameon=False, fontsize=9)
    picture.save(drawn, out)
