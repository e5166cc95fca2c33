"""How the pictures of the documentation look: matplotlib, written as small svg files."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart.
GREY, BLUE, ORANGE, GREEN, RED, SKY = (
    "#555555",
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
)


def figure(*, width: float = 9, height: float) -> Figure:
    """An empty picture; inches, of which nine fill a page."""
    made = plt.figure(figsize=(width, height), layout="constrained")
    made.set_facecolor("white")  # readable on a dark page as well
    return made


def label(axes: Axes, *, title: str = "", across: str = "", up: str = "") -> None:
    """Words and grid, in the sizes that all pictures share."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(across, fontsize=9)
    axes.set_ylabel(up, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)


def save(made: Figure, out: Path) -> None:
    """The same drawing gives the same bytes; text stays text."""
    with plt.rc_context({"svg.hashsalt": "encke", "svg.fonttype": "none"}):
        made.savefig(out, metadata={"Date": None})
    plt.close(made)
