"""An all-to-all over links of a known rate, in one go and in pieces: results/wire_pieces.csv.

python benchmarks/wire_pieces.py

`ideal_ms` is bytes over rate. Every exchange follows a pause, as in a training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encke.cli.wire import write_csv
from encke.wire.bench.links import Rate
from encke.wire.bench.run import run_ranks

RESULTS = Path(__file__).parent / "results" / "wire_pieces.csv"
COLUMNS = (
    "ranks", "rate", "megabytes", "way", "ideal_ms", "median_ms", "least_ms", "most_ms",
    "rounds",
)  # fmt: skip


def main() -> None:
    rows: list[dict[str, Any]] = []
    job = {"megabytes": [1.0, 3.0, 5.0], "rounds": 9}
    for ranks in (2, 4):
        for text in ("200mbit", "1gbit"):
            rate = Rate.parse(text)
            for row in run_ranks(
                job, ranks=ranks, rate=rate, module="encke.wire.bench.transport"
            ):
                ideal = 8e9 * row["megabytes"] / rate.bits if rate.bits else None
                rows.append({**row, "ranks": ranks, "rate": text, "ideal_ms": ideal})
            write_csv(RESULTS, rows, COLUMNS)


if __name__ == "__main__":
    main()
