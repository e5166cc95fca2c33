"""Water-filling against one relative bound for all: bytes kept at the same added variance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import picture
from matplotlib.figure import Figure
from network import Trained, forward

from encke.bound.allocate import Demand, water_fill


@dataclass(frozen=True, kw_only=True)
class Point:
    """One setting: the variance that it adds to gradients, summed, and the bytes it keeps."""

    variance: float
    bytes: int
    bounds: dict[str, float]


def added(trained: Trained, bounds: dict[str, float]) -> dict[str, float]:
    """s·e² of each tensor: what its error adds to the gradients' relative variance."""
    return {name: trained.policy.sensitivity[name] * e**2 for name, e in bounds.items()}


def filled(trained: Trained, variance: float) -> Point:
    """Bounds by water-filling."""
    policy = trained.policy
    demands = {
        name: Demand(values=policy.values[name], sensitivity=s)
        for name, s in policy.sensitivity.items()
    }
    bounds = water_fill(demands, variance=variance)
    _, stored = forward(trained, bounds)
    return Point(variance=variance, bytes=stored, bounds=bounds)


def uniform(trained: Trained, variance: float) -> Point:
    """Each tensor's bound the same multiple of its root mean square, at the same variance."""
    scales, _ = forward(trained, {})
    once = {name: scales.scales[name] for name in trained.policy.sensitivity}
    share = math.sqrt(variance / sum(added(trained, once).values()))
    bounds = {name: share * scale for name, scale in once.items()}
    _, stored = forward(trained, bounds)
    return Point(variance=variance, bytes=stored, bounds=bounds)


def draw(trained: Trained) -> Figure:
    trained.tape.detach()
    drawn = picture.figure(height=3.6)
    left, right = drawn.subplots(1, 2, width_ratios=[3, 2])
    variance = 0.1
    ways = {
        "one relative bound": (uniform(trained, variance), picture.GREY, -0.2),
        "water-filling": (filled(trained, variance), picture.BLUE, 0.2),
    }
    names = list(reversed(trained.policy.sensitivity))  # effects are reported backwards
    for way, (point, colour, offset) in ways.items():
        shares = added(trained, point.bounds)
        per_value = [shares[n] / trained.policy.values[n] for n in names]
        places = [i + offset for i in range(len(names))]
        left.bar(places, per_value, width=0.4, color=colour, label=way)
    short = [n.split("/")[0].replace("blocks.", "block ").replace("branch.", "") for n in names]
    left.set_xticks(range(len(names)), short, rotation=90)
    left.set_yscale("log")
    picture.label(left, title="variance that one value adds, by tensor")
    left.tick_params(axis="x", labelsize=6)
    left.legend(frameon=False, fontsize=8)
    variances = [0.01 * 4**k for k in range(6)]
    for way, make, colour, marker in (
        ("one relative bound", uniform, picture.GREY, "s"),
        ("water-filling", filled, picture.BLUE, "o"),
    ):
        points = [make(trained, v) for v in variances]
        kilobytes = [p.bytes / 1e3 for p in points]
        right.plot(variances, kilobytes, f"{marker}-", color=colour, label=way)
    right.set(xscale="log")
    picture.label(
        right,
        title="what is kept",
        across="added variance, summed over tensors",
        up="kB",
    )
    right.set_ylim(bottom=0)
    return drawn
