"""Draws results/codecs.svg from results/codecs.csv: ratio against bound, and speed.

python benchmarks/chart.py
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np

import records
import tensors
from records import RESULTS, Record

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes


@dataclass(frozen=True)
class Line:
    """How one codec is drawn: Okabe and Ito's colours, and a marker that tells it too."""

    codec: str
    dither: bool
    label: str
    colour: str
    marker: str
    dashed: bool = False


LINES = (
    Line("entropy", False, "entropy", "#0072B2", "o"),
    Line("entropy", True, "entropy, dithered", "#56B4E9", "s", dashed=True),
    Line("predict", False, "predict", "#009E73", "^"),
    Line("fixed", False, "fixed", "#E69F00", "D"),
    Line("SZ3", False, "SZ3", "#D55E00", "v"),
    Line("zfp", False, "zfp", "#444444", "x"),
)
TITLES = {
    "activation": "activations",
    "gradient": "gradients",
    "weight": "weights",
    "climate": "climate fields",
    "jets": "jet pictures",
}


def geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def draw_ratios(axes: Axes, rows: list[Record], kind: str) -> int:
    """Geometric mean over the class's tensors, for each bound; gives how many tensors."""
    own = [row for row in rows if tensors.tensor_class(row.tensor) == kind]
    bounds = sorted({row.bound for row in own if row.bound.startswith("range ")}, key=_number)
    for line in LINES:
        points = []
        for bound in bounds:
            ratios = [
                row.ratio
                for row in own
                if row.bound == bound and row.codec == line.codec and row.dither == line.dither
            ]
            if ratios:
                points.append((_number(bound), geometric_mean(ratios)))
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=line.colour,
                marker=line.marker,
                linestyle="--" if line.dashed else "-",
                markersize=5,
                linewidth=1.6,
                label=line.label,
            )
    axes.set(xscale="log", yscale="log")
    axes.set_xticks([_number(bound) for bound in bounds], minor=False)
    axes.set_xticklabels([f"{100 * _number(bound):g} %" for bound in bounds], fontsize=8)
    axes.minorticks_off()
    ticks = [2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
    low, high = axes.get_ylim()
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    return len({row.tensor for row in own})


def _number(bound: str) -> float:
    return float(bound.split()[1])


def draw_speed(axes: Axes, rows: list[Record]) -> None:
    """Encoding and decoding of the large tensors on one thread, memcpy being 1."""
    large = [row for row in rows if row.tensor.startswith("large/") and row.threads == 1]
    kinds = [
        (line, own)
        for line in LINES
        if (own := [r for r in large if r.codec == line.codec and r.dither == line.dither])
    ]
    for place, (line, own) in enumerate(reversed(kinds)):
        for offset, direction, shade in ((0.19, "encode", 1.0), (-0.19, "decode", 0.55)):
            speed = geometric_mean([getattr(r, f"{direction}_relative_to_memcpy") for r in own])
            axes.barh(place + offset, speed, height=0.34, color=line.colour, alpha=shade)
            axes.text(
                speed * 1.06,
                place + offset,
                f"{direction} {speed:.2g}",
                va="center",
                fontsize=8,
            )
    axes.axvline(1, color="#666666", linewidth=1, linestyle=":")
    axes.set_yticks(range(len(kinds)), [line.label for line, _ in reversed(kinds)], fontsize=8)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.01), max(high, 1.5) * 4)
    axes.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "memcpy"], fontsize=8)
    axes.minorticks_off()
    sizes = sorted({int(row.tensor.split()[1]) for row in large})
    megabytes = " and ".join(map(str, sizes))
    axes.set_title(f"speed, {megabytes} MB, one thread", fontsize=10)
    axes.set_xlabel("relative to memcpy", fontsize=9)
    axes.grid(alpha=0.25, axis="x")


def draw(rows: list[Record], out: Path) -> None:
    figure, grid = plt.subplots(2, 3, figsize=(12, 7.4))
    for axes, kind in zip(grid.flat, tensors.CLASSES, strict=False):
        count = draw_ratios(axes, rows, kind)
        noun = "tensor" if count == 1 else "tensors"
        axes.set_title(f"{TITLES[kind]} ({count} {noun})", fontsize=10)
    for axes in (grid[1, 0], grid[1, 1]):
        axes.set_xlabel("bound, of the tensor's range", fontsize=9)
    for axes in grid[:, 0]:
        axes.set_ylabel("ratio (geometric mean)", fontsize=9)
    draw_speed(grid[1, 2], rows)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(LINES), frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    plt.rcParams["svg.hashsalt"] = "encke"
    figure.savefig(out, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the codecs' chart.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = records.read(options.results / "codecs.csv")
    if not rows:
        raise SystemExit(f"no rows in {options.results}/codecs.csv; run codecs.py first")
    draw(rows, options.results / "codecs.svg")
    print(f"wrote {options.results / 'codecs.svg'}")


if __name__ == "__main__":
    main()
