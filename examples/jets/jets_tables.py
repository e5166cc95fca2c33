"""The tables of docs/jets.md, from benchmarks/results/jets.csv.

python examples/jets/jets_tables.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import measured
from measured import RESULTS, Column, Row

BASELINE = "mass alone"
NETWORKS = ("network, plain", "network, Encke")
DIFFERENCE = "Encke less plain"
EFFICIENCIES = (0.3, 0.5)
MEASURES = {"AUC": "{:.4f}", **{f"1/eps_B at {e:.0%}": "{:.1f}" for e in EFFICIENCIES}}


def _seeds(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each way and seed: value and the bootstrap's middle 68 %."""
    values = {(row.way, row.seed, row.measure): row.value for row in rows}
    runs = dict.fromkeys((row.way, row.seed) for row in rows if row.way != DIFFERENCE)
    lines = [["", "seed", *MEASURES]]
    for way, seed in sorted(runs, key=lambda run: [BASELINE, *NETWORKS].index(run[0])):
        cells = []
        for name, form in MEASURES.items():
            low = values[way, seed, f"{name}, 16 % of samples below"]
            high = values[way, seed, f"{name}, 16 % of samples above"]
            now = values[way, seed, name]
            cells.append(f"{form.format(now)} ({form.format(low)} to {form.format(high)})")
        lines.append([way, "" if seed is None else str(seed), *cells])
    return lines


def _differences(rows: Sequence[Row]) -> list[list[str]]:
    values = {(row.seed, row.measure): row.value for row in rows if row.way == DIFFERENCE}
    lines = [["seed", *MEASURES]]
    for seed in dict.fromkeys(seed for seed, _ in values):
        cells = [
            f"{form.replace(':', ':+').format(values[seed, name])} ± "
            f"{form.format(values[seed, f'{name}, bootstrap deviation'])}"
            for name, form in MEASURES.items()
        ]
        lines.append([str(seed), *cells])
    return lines


def tables(rows: Sequence[Row]) -> dict[str, list[list[str]]]:
    """Title → heading and lines."""
    means = tuple(Column(name, name, form) for name, form in MEASURES.items())
    cost = (
        Column("kept, times smaller", "kept for backward, times smaller", "{:.1f}"),
        Column("relative time", "time of a step, plain = 1", "{:.2f}"),
    )
    return {
        "Mean and deviation over seeds": measured.table(rows, [BASELINE, *NETWORKS], means),
        "Seed by seed, with the middle 68 % of bootstrap samples": _seeds(rows),
        "Encke less plain on the same jets, with the bootstrap's deviation": _differences(rows),
        "Memory and time": measured.table(rows, NETWORKS[1:], cost),
    }


if __name__ == "__main__":
    measured.print_pages(RESULTS / "jets.csv", tables)
