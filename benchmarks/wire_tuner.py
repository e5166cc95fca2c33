"""The tuner's predictions against measured steps, over rates, ranks, codecs and tolerances.

python benchmarks/wire_tuner.py        # writes benchmarks/results/wire_tuner.csv

In each cell of rate and ranks the tuner measures and predicts, then every choice trains for a
few steps, in turn. Nothing is fitted to the cells. Those of two ranks at 200 and 1000 Mbit/s
were looked at while the model of a step was written; the others are held out.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from encke.cli.wire import write_csv
from encke.wire.bench.links import Rate
from encke.wire.bench.run import run_ranks

RESULTS = Path(__file__).parent / "results" / "wire_tuner.csv"
SEEN = {(2, "200mbit"), (2, "1gbit")}
COLUMNS = (
    "ranks",
    "rate",
    "codec",
    "tolerance",
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


def cell(job: dict[str, Any], ranks: int, rate: Rate) -> list[dict[str, Any]]:
    """One number of ranks at one rate: a row for each choice."""
    rows = run_ranks(job, ranks=ranks, rate=rate, module="encke.wire.bench.tuning")
    best = min(row["measured_ms"] for row in rows)
    chosen = next(row["measured_ms"] for row in rows if row["chosen"])
    return [
        {
            **row,
            "ranks": ranks,
            "rate": str(rate),
            "error": row["predicted_ms"] / row["measured_ms"] - 1,
            "regret": chosen / best - 1 if row["chosen"] else None,
            "held_out": (ranks, str(rate)) not in SEEN,
        }
        for row in rows
    ]


def summary(rows: list[dict[str, Any]]) -> str:
    held = [abs(row["error"]) for row in rows if row["held_out"]]
    regrets = [row["regret"] for row in rows if row["regret"] is not None]
    everywhere = statistics.mean(abs(row["error"]) for row in rows)
    lines = [f"mean error {everywhere:.1%} of {len(rows)} cells"]
    if held:
        lines.append(f"held out: {statistics.mean(held):.1%} of {len(held)}")
    lines.append(f"choices within {max(regrets):.1%} of the best")
    return "; ".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rate", default="200mbit,500mbit,1gbit,unshaped")
    parser.add_argument("--megabytes", type=float, default=42.0)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--csv", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    job = {
        "megabytes": arguments.megabytes,
        "batch": 32,
        "steps": arguments.steps,
        "tolerance": 0.01,
    }
    rows: list[dict[str, Any]] = []
    for ranks in map(int, arguments.ranks.split(",")):
        for text in arguments.rate.split(","):
            rows += cell(job, ranks, Rate.parse(text))
            write_csv(arguments.csv, rows, COLUMNS)
            print(f"{ranks} ranks, {text}:", summary(rows), flush=True)


if __name__ == "__main__":
    main()
