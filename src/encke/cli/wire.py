"""`encke wire`: what exchanging gradients takes, on links of a known speed."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path
from typing import Any

from encke.cli.output import print_json, print_table

_COLUMNS = (
    "ranks",
    "rate",
    "contestant",
    "step_ms",
    "best_ms",
    "alone_ms",
    "best_alone_ms",
    "communication_ms",
    "of_fp16",
    "sent_mb",
    "processor_ms",
    "processor_alone_ms",
    "codec",
    "largest_error_of_bound",
    "deviation_of_promised",
    "megabytes",
    "batch",
    "steps",
    "remark",
)


def add_to(commands: Any) -> None:
    """Add `wire` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "wire",
        help="compare ways to exchange gradients on shaped links",
        description="What ranks exchange, compressed; see docs/wire.md.",
    )
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    bench = actions.add_parser(
        "bench",
        help="stock DDP hooks and Encke's, on links of this machine with a given rate",
        description="Trains with DDP on ranks in network namespaces whose links pass through a "
        "token bucket (`tc tbf`), with each hook in turn. Needs the right to make namespaces; "
        "they are removed on every exit. Communication is what a step takes beyond one without "
        "exchange. Bytes are those of the link, headers included; processor time is that of a "
        "rank's whole process. Errors are of one further step, held against an exact "
        "all-reduce.",
    )
    bench.add_argument("--ranks", default="2", metavar="N,N", help="as in 2,4 (default 2)")
    bench.add_argument(
        "--rate",
        default="200mbit",
        metavar="RATE,RATE",
        help="of every rank's link in each direction, as in 200mbit,1gbit,unshaped",
    )
    bench.add_argument("--contestants", metavar="NAMES", help="some of them, by commas")
    bench.add_argument(
        "--megabytes", type=float, default=42.0, help="of gradients (default 42)"
    )
    bench.add_argument("--batch", type=int, default=32, help="examples a rank (default 32)")
    bench.add_argument("--steps", type=int, default=5, help="of each contestant (default 5)")
    bench.add_argument("--csv", type=Path, metavar="FILE", help="write the figures there")
    bench.add_argument("--force", action="store_true", help="replace an existing FILE")
    bench.add_argument("--json", action="store_true", help="print JSON")
    bench.set_defaults(run=run_bench)


def run_bench(arguments: argparse.Namespace) -> int:
    """Measure every number of ranks at every rate."""
    from encke.atomic import check_output
    from encke.errors import UnsupportedError
    from encke.wire.bench.contestants import CONTESTANTS
    from encke.wire.bench.links import Rate
    from encke.wire.bench.run import run_ranks

    if arguments.csv is not None:
        check_output(arguments.csv, force=arguments.force)
    rates = [Rate.parse(text) for text in arguments.rate.split(",")]
    worlds = [_count(text) for text in arguments.ranks.split(",")]
    names = list(CONTESTANTS)
    if arguments.contestants is not None:
        names = [name.strip() for name in arguments.contestants.split(",")]
        unknown = [name for name in names if name not in CONTESTANTS]
        if unknown:
            raise UnsupportedError(
                f"--contestants has {', '.join(unknown)}, allowed are {', '.join(CONTESTANTS)}"
            )
    for flag, least in (("megabytes", 0.1), ("batch", 1), ("steps", 1)):
        if getattr(arguments, flag) < least:
            raise UnsupportedError(
                f"--{flag} is {getattr(arguments, flag)}, allowed is {least} or more"
            )
    size = {key: getattr(arguments, key) for key in ("megabytes", "batch", "steps")}
    rows: list[dict[str, Any]] = []
    for ranks in worlds:
        for rate in rates:
            found = completed(run_ranks({"contestants": names, **size}, ranks=ranks, rate=rate))
            rows += [{"ranks": ranks, "rate": str(rate), **row, **size} for row in found]
            if not arguments.json:
                _print(f"{ranks} ranks, {rate}, {arguments.megabytes:g} MB of gradients", found)
            if arguments.csv is not None:
                write_csv(arguments.csv, rows, _COLUMNS)
    if arguments.json:
        print_json({"rows": rows})
    return 0


def completed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with communication time, and its share of what fp16 takes.

    >>> rows = [{"contestant": "fp16", "step_ms": 3.0, "alone_ms": 1.0},
    ...         {"contestant": "ours", "step_ms": 1.5, "alone_ms": 1.0}]
    >>> [(row["communication_ms"], row["of_fp16"]) for row in completed(rows)]
    [(2.0, 1.0), (0.5, 0.25)]
    """
    for row in rows:
        row["communication_ms"] = max(0.0, row["step_ms"] - row["alone_ms"])
    fp16 = [row["communication_ms"] for row in rows if row["contestant"] == "fp16"]
    for row in rows:
        row["of_fp16"] = row["communication_ms"] / fp16[0] if fp16 and fp16[0] else None
    return rows


def write_csv(path: Path, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """The rows as a table, figures with as many digits as they are worth."""
    from encke.atomic import write_text

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    write_text(path, text.getvalue())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _count(text: str) -> int:
    from encke.errors import UnsupportedError

    if not text.strip().isdigit() or not 2 <= int(text) <= 64:
        raise UnsupportedError(f"--ranks has {text!r}, allowed are numbers from 2 to 64")
    return int(text)


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    def shown(row: dict[str, Any], key: str, digits: int = 1) -> str:
        value = row.get(key)
        return "–" if value is None else f"{value:.{digits}f}"

    print_table(
        [
            "contestant",
            "step ms",
            "communication ms",
            "of fp16",
            "sent MB",
            "processor ms",
            "error/bound",
            "deviation/promised",
        ],
        [
            [
                row["contestant"],
                shown(row, "step_ms"),
                shown(row, "communication_ms"),
                shown(row, "of_fp16", 2),
                shown(row, "sent_mb", 2),
                shown(row, "processor_ms", 0),
                shown(row, "largest_error_of_bound", 3),
                shown(row, "deviation_of_promised", 3),
            ]
            for row in rows
        ],
        title=title,
    )
    for row in rows:
        if row["remark"]:
            print(f"  {row['contestant']}: {row['remark']}")
