"""The tuner's predictions against measured steps, over rates, ranks, codecs and fractions.

python benchmarks/wire_tuner.py        # writes benchmarks/results/wire_tuner.csv

A cell is a number of ranks at a rate. In each, `gradients` examines `tune`: every codec and
tolerance, and no compression, trains for some steps, in turn. `curvature` examines
`tune_curvature`: K-FAC with every worker fraction, factors compressed and exact. Nothing is
fitted to the cells. Those of two ranks at 200 and 1000 Mbit/s were looked at while the model of
a step was written, those of two ranks at 500 Mbit/s and of two and four unshaped when it was
decided how long the tuner measures and when it declines; the others are held out. Cells that
are in the file are not measured again.

`regret` is what the choice took beyond the best of its cell.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any

from encke.cli.wire import write_csv
from encke.wire.bench.links import Rate
from encke.wire.bench.run import run_ranks

RESULTS = Path(__file__).parent / "results" / "wire_tuner.csv"
_OF_TWO = ("200mbit", "500mbit", "1gbit", "unshaped")
SEEN = {("2", rate) for rate in _OF_TWO} | {("4", "unshaped")}
MODULES = {
    "gradients": "encke.wire.bench.tuning",
    "curvature": "encke.wire.bench.curving",
}
JOBS: dict[str, dict[str, Any]] = {
    "gradients": {"megabytes": 42.0, "steps": 5, "most_steps": 25, "seconds": 15.0},
    "curvature": {
        "megabytes": 8.0,
        "steps": 2,
        "most_steps": 6,
        "seconds": 15.0,
        "intervals": [2, 4],
    },
}
COLUMNS = (
    "kind",
    "ranks",
    "rate",
    "codec",
    "tolerance",
    "fraction",
    "factors",
    "factor_interval",
    "inverse_interval",
    "predicted_ms",
    "measured_ms",
    "error",
    "chosen",
    "regret",
    "held_out",
    "alone_ms",
    "link_mbit",
    "tuning_s",
    "megabytes",
    "steps",
)


def cell(kind: str, ranks: str, rate: str) -> list[dict[str, Any]]:
    """One number of ranks at one rate: a row for each choice."""
    job = {"batch": 32, "tolerance": 0.01, **JOBS[kind]}
    rows = run_ranks(job, ranks=int(ranks), rate=Rate.parse(rate), module=MODULES[kind])
    best = min(row["measured_ms"] for row in rows)
    return [
        {
            **row,
            "kind": kind,
            "ranks": ranks,
            "rate": rate,
            "error": row["predicted_ms"] / row["measured_ms"] - 1,
            "regret": row["measured_ms"] / best - 1 if row["chosen"] else None,
            "held_out": (ranks, rate) not in SEEN,
        }
        for row in rows
    ]


def summary(rows: list[dict[str, Any]]) -> str:
    lines = []
    for kind in MODULES:
        own = [row for row in rows if row["kind"] == kind]
        if not own:
            continue
        held = [abs(float(row["error"])) for row in own if str(row["held_out"]) == "True"]
        regrets = [float(row["regret"]) for row in own if row["regret"] not in (None, "")]
        everywhere = statistics.mean(abs(float(row["error"])) for row in own)
        lines.append(f"{kind}: mean error {everywhere:.1%} of {len(own)} choices")
        if held:
            lines.append(f"  held out: {statistics.mean(held):.1%} of {len(held)}")
        lines.append(
            f"  chosen: within {max(regrets):.1%} of the best, {statistics.mean(regrets):.1%} "
            "on average"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kinds", default="gradients,curvature")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rate", default="200mbit,500mbit,1gbit,unshaped")
    parser.add_argument("--csv", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if arguments.csv.exists():
        with arguments.csv.open(newline="") as file:
            rows = list(csv.DictReader(file))
    done = {(row["kind"], row["ranks"], row["rate"]) for row in rows}
    for kind in arguments.kinds.split(","):
        for ranks in arguments.ranks.split(","):
            for rate in arguments.rate.split(","):
                if (kind, ranks, rate) in done:
                    continue
                rows += cell(kind, ranks, rate)
                write_csv(arguments.csv, rows, COLUMNS)
                print(f"{kind}, {ranks} ranks, {rate}", flush=True)
    print(summary(rows))


if __name__ == "__main__":
    main()
