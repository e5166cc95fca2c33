"""The tables of docs/climate.md, from benchmarks/results/climate.csv.

python examples/climate/climate_tables.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import measured
from measured import RESULTS, Column, Row

BASELINES = ("interpolation", "delta method", "regression")
NETWORKS = ("U-Net, plain", "U-Net, Encke")
WAYS = (*BASELINES, *NETWORKS)

_SIGNED = "{:+.3f}"
TABLES = {
    "Error over the whole globe, weighted by area, in kelvin": (
        WAYS,
        (
            Column("RMSE, all", "RMSE"),
            Column("MAE, all", "MAE"),
            Column("bias, all", "bias", _SIGNED),
        ),
    ),
    "RMSE on the extreme 1 % of the area, in kelvin": (
        WAYS,
        (
            Column("RMSE, coldest", "coldest"),
            Column("RMSE, hottest", "hottest"),
            Column("RMSE, below normal", "most below normal"),
            Column("RMSE, above normal", "most above normal"),
        ),
    ),
    "Bias on the extreme 1 % of the area, in kelvin": (
        WAYS,
        (
            Column("bias, coldest", "coldest", _SIGNED),
            Column("bias, hottest", "hottest", _SIGNED),
            Column("bias, below normal", "most below normal", _SIGNED),
            Column("bias, above normal", "most above normal", _SIGNED),
        ),
    ),
    "Error of the anomalies' quantiles, in kelvin": (
        WAYS,
        tuple(
            Column(f"quantile {share} of anomalies, error", share, _SIGNED)
            for share in ("0.1%", "1.0%", "99.0%", "99.9%")
        ),
    ),
    "Memory and time": (
        NETWORKS[1:],
        (
            Column("kept, times smaller", "kept for backward, times smaller", "{:.1f}"),
            Column("relative time", "time of a step, plain = 1", "{:.2f}"),
        ),
    ),
}


def tables(rows: Sequence[Row]) -> dict[str, list[list[str]]]:
    """Title → heading and lines."""
    return {
        title: measured.table(rows, ways, columns) for title, (ways, columns) in TABLES.items()
    }


if __name__ == "__main__":
    measured.print_pages(RESULTS / "climate.csv", tables)
