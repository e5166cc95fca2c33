"""Background rejection against signal efficiency, from benchmarks/results/jets_roc.csv.

python examples/jets/jets_picture.py docs/pictures/jets.svg
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from jets_tables import BASELINE, NETWORKS

sys.path.insert(0, str(Path(__file__).parents[1]))

import picture
from measured import RESULTS

LOOKS = {
    BASELINE: (picture.ORANGE, ":"),
    NETWORKS[0]: (picture.GREY, "-"),
    NETWORKS[1]: (picture.BLUE, "--"),
}


def draw(curves: Path, out: Path) -> None:
    """Writes an svg: each way's mean over seeds, and the band that its seeds span."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with curves.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            seeds = found.setdefault(row["way"], {})
            point = float(row["eps_S"]), float(row["eps_B"])
            seeds.setdefault(row["seed"], []).append(point)
    drawn = picture.figure(height=3.8)
    left, right = drawn.subplots(1, 2)
    for way, seeds in found.items():
        colour, line = LOOKS[way]
        signal = np.array([s for s, _ in next(iter(seeds.values()))])
        passed = np.array([[b for _, b in curve] for curve in seeds.values()])
        left.plot(passed.mean(0), signal, line, color=colour, label=way, linewidth=1.8)
        left.fill_betweenx(signal, passed.min(0), passed.max(0), color=colour, alpha=0.15)
        rejected = 1 / np.maximum(passed, 1e-3)
        right.plot(signal, 1 / np.maximum(passed.mean(0), 1e-3), line, color=colour)
        right.fill_between(signal, rejected.min(0), rejected.max(0), color=colour, alpha=0.15)
    picture.label(left, across="background that passes, ε_B", up="signal that passes, ε_S")
    picture.label(right, across="signal that passes, ε_S", up="background rejection, 1/ε_B")
    left.legend(frameon=False, fontsize=9)
    right.set(yscale="log", xlim=(0.1, 1))
    picture.save(drawn, out)


if __name__ == "__main__":
    draw(RESULTS / "jets_roc.csv", Path(sys.argv[1]))
