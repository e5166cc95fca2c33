"""The tables of docs/holes.md, from holes.csv, holes_speed.csv and predict_choice.csv.

python benchmarks/holes/tables.py --write
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "holes.md"

Row = dict[str, str]


def read(name: str) -> list[Row]:
    with (RESULTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def numbers(rows: Sequence[Row], column: str) -> list[float]:
    return [float(row[column]) for row in rows if row.get(column)]


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def sizes(rows: Sequence[Row]) -> str:
    """One line for each bound and way that holes lie."""
    lines = [
        "| bound | coast | holes | mask | cases | of SZ3: mean | worst "
        "| of SZ3, holes filled: mean | worst | over clean: mean | worst |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    single = [row for row in rows if row["dtype"] == "float32"]
    keys = dict.fromkeys((r["bound"], r["coast"], r["holes"], r["mask"]) for r in single)
    for key in sorted(keys, key=lambda k: (-float(k[0]), k[3], k[1] != "smooth", float(k[2]))):
        found = [r for r in single if (r["bound"], r["coast"], r["holes"], r["mask"]) == key]
        raw, filled = numbers(found, "of_sz3"), numbers(found, "of_sz3_filled")
        over = [1 + v for v in numbers(found, "over_clean")]
        lines.append(
            f"| {float(key[0]):g} | {key[1]} | {float(key[2]):.0%} | {key[3]} | {len(found)} "
            f"| {mean(raw):.2f} | {min(raw):.2f} | {mean(filled):.2f} | {min(filled):.2f} "
            f"| {mean(over) - 1:+.1%} | {max(over) - 1:+.1%} |"
        )
    return "\n".join(lines) + "\n"


def totals(rows: Sequence[Row]) -> str:
    """One line for each bound and dtype."""
    lines = [
        "| dtype | bound | cases | of SZ3: mean | worst | of SZ3, holes filled: mean | worst "
        "| within 3 % of clean | largest error / bound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((row["dtype"], row["bound"]) for row in rows):
        found = [row for row in rows if (row["dtype"], row["bound"]) == key]
        raw, filled = numbers(found, "of_sz3"), numbers(found, "of_sz3_filled")
        near = sum(v <= 0.03 for v in numbers(found, "over_clean"))
        shown = [f"{f(v):.2f}" if v else "" for v in (raw, filled) for f in (mean, min)]
        error = max(numbers(found, "error_over_bound"))
        lines.append(
            f"| {key[0]} | {float(key[1]):g} | {len(found)} | {' | '.join(shown)} "
            f"| {near} of {len(found)} | {error:.6f} |"
        )
    return "\n".join(lines) + "\n"


def speed(rows: Sequence[Row]) -> str:
    """One line for each share of holes and kind of mask."""
    lines = [
        "| holes | mask | cases | compress, of clean: median | worst "
        "| decompress, of clean: median | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in sorted(dict.fromkeys((row["mask"], row["holes"]) for row in rows)):
        found = [row for row in rows if (row["mask"], row["holes"]) == key]
        encode = sorted(numbers(found, "encode_of_clean"))
        decode = sorted(numbers(found, "decode_of_clean"))
        lines.append(
            f"| {float(key[1]):.0%} | {key[0]} | {len(found)} "
            f"| {encode[len(encode) // 2]:.2f} | {encode[0]:.2f} "
            f"| {decode[len(decode) // 2]:.2f} | {decode[0]:.2f} |"
        )
    return "\n".join(lines) + "\n"


def choice(rows: Sequence[Row]) -> str:
    """One line for each bound: fields of the climate model, and photographs."""
    lines = [
        "| bound | fields | of SZ3: mean | worst | behind SZ3 | lost by a wrong choice, most |",
        "|---|---|---|---|---|---|",
    ]
    for bound in dict.fromkeys(row["bound"] for row in rows):
        for kind in ("climate", "photographs"):
            found = [
                row
                for row in rows
                if row["bound"] == bound and (".jpg" in row["field"]) == (kind != "climate")
            ]
            ratio = numbers(found, "of_sz3")
            behind = sum(r < 1 for r in ratio)
            lines.append(
                f"| {float(bound):g} | {len(found)}, {kind} | {mean(ratio):.2f} "
                f"| {min(ratio):.2f} | {behind} | {max(numbers(found, 'lost')):.1%} |"
            )
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    rows = read("holes.csv")
    return {
        "totals": totals(rows),
        "sizes": sizes(rows),
        "speed": speed(read("holes_speed.csv")),
        "choice": choice(read("predict_choice.csv")),
    }


def page(text: str, made: dict[str, str]) -> str:
    """`text` with each table in its place."""
    for name, table in made.items():
        start, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = text.split(start)
        text = before + start + "\n" + table + "\n" + end + rest.split(end)[1]
    return text


def main(write: Callable[[str], object] = PAGE.write_text) -> None:
    made = page(PAGE.read_text(encoding="utf-8"), tables())
    if "--write" in sys.argv:
        write(made)
    elif made != PAGE.read_text(encoding="utf-8"):
        raise SystemExit("docs/holes.md differs; run with --write")


if __name__ == "__main__":
    main()
