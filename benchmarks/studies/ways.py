"""What each way came to over all networks and data of a study: results/study_ways.csv.

    python benchmarks/studies/ways.py benchmarks/studies/results

A cell is compared with the plain cell of the same network, data and seed. `points` is the
accuracy gained or lost, in points, over the cells that have one, `median` their median;
`spread` their standard deviation; `steady` the mean without networks and data on which plain's
own seeds lie ten points apart or more; errors are those of the means. Ratios are geometric
means. `kept`, `peak` and `time` are
those of plain over the way's, but for time, where it is the way's over plain's.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from pathlib import Path

from encke.study import results
from encke.study.results import Row

COLUMNS = (
    "policy",
    "cells",
    "points",
    "median",
    "spread",
    "error",
    "steady",
    "steady_error",
    "worst",
    "kept",
    "peak",
    "time",
)
_APART = 10.0  # points
OUT = Path(__file__).parent.parent / "results" / "study_ways.csv"


def main(directory: str) -> None:
    done = [row for row in results.read(directory).rows if row["status"] == "done"]
    plain = {scene(row): row for row in done if row["policy_kind"] == "plain"}
    ways: dict[str, list[Row]] = {}
    for row in done:
        if row["policy_kind"] != "plain" and scene(row) in plain:
            ways.setdefault(row["policy"], []).append(row)
    table = [summary(policy, rows, plain) for policy, rows in ways.items()]
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(table)
    for line in table:
        print("  ".join(f"{line[column]!s:>8}" for column in COLUMNS[1:]), line["policy"])


def scene(row: Row) -> tuple[str, str, int]:
    return row["model"], row["data"], row["seed"]


def summary(policy: str, rows: list[Row], plain: dict[tuple[str, str, int], Row]) -> Row:
    points = [
        row["metric"]["final"] - plain[scene(row)]["metric"]["final"]
        for row in rows
        if row["metric"]["unit"] == "%" and row["metric"]["final"] is not None
    ]
    finals: dict[tuple[str, str], list[float]] = {}
    for (model, data, _), row in plain.items():
        finals.setdefault((model, data), []).append(row["metric"]["final"])
    steady = [
        row["metric"]["final"] - plain[scene(row)]["metric"]["final"]
        for row in rows
        if row["metric"]["unit"] == "%"
        and row["metric"]["final"] is not None
        and _range(finals[scene(row)[:2]]) < _APART
    ]
    return {
        "policy": policy,
        "cells": len(rows),
        "points": round(statistics.fmean(points), 2),
        "median": round(statistics.median(points), 2),
        "spread": round(_spread(points), 2),
        "error": round(_spread(points) / math.sqrt(len(points)), 2),
        "steady": round(statistics.fmean(steady), 2),
        "steady_error": round(_spread(steady) / math.sqrt(len(steady)), 2),
        "worst": round(min(points), 1),
        "kept": mean([row["memory"]["ratio"] for row in rows]),
        "peak": mean(
            [
                plain[scene(row)]["memory"]["peak_bytes"] / row["memory"]["peak_bytes"]
                for row in rows
                if row["memory"]["peak_bytes"]
            ]
        ),
        "time": mean([row["time"]["relative"] for row in rows]),
    }


def _range(numbers: list[float]) -> float:
    return max(numbers) - min(numbers)


def _spread(numbers: list[float]) -> float:
    return statistics.stdev(numbers) if len(numbers) > 1 else 0.0


def mean(ratios: list[float | None]) -> float | str:
    """Geometric, of those that are known."""
    known = [ratio for ratio in ratios if ratio]
    return round(statistics.geometric_mean(known), 2) if known else ""


if __name__ == "__main__":
    main(sys.argv[1])
