"""The tables of docs/programs.md, from benchmarks/results/programs.csv.

python benchmarks/programs/tables.py --write
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "programs.csv"
PAGE = ROOT / "docs" / "programs.md"
START, END = "<!-- tables: begin -->\n", "<!-- tables: end -->\n"

Row = dict[str, str]


def read(path: Path = RESULTS) -> list[Row]:
    """The rows of a result file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tables(rows: Sequence[Row]) -> str:
    """The part of the page that the rows decide."""
    verdicts = Counter(row["verdict"] for row in rows)
    counts = [[verdict, str(count)] for verdict, count in verdicts.most_common()]
    aside = [
        [_code(row["program"]), row["said"].replace("|", "\\|")]
        for row in rows
        if row["verdict"].startswith(("stepped aside", "silent", "crash"))
    ]
    parts = [
        f"{len(rows)} programs:\n",
        _markdown(["verdict", "programs"], counts),
        _markdown(list(_HEADINGS), [_line(row) for row in rows]),
    ]
    if aside:
        parts.append("What Encke printed where it compressed little or nothing:\n")
        parts.append(_markdown(["program", "what Encke printed"], aside))
    return "\n".join(parts)


_HEADINGS = (
    "program",
    "verdict",
    "final loss, plain",
    "with Encke",
    "spread over seeds",
    "process peak, plain (MB)",
    "with Encke, plain = 1",
    "peak above the baseline, plain = 1",
    "saved bytes, times smaller",
    "training time, plain = 1",
    "ordinary step, plain = 1",
)


def _line(row: Row) -> list[str]:
    return [
        _code(row["program"]),
        row["verdict"],
        _number(row["loss_plain"], ".4g"),
        _number(row["loss_encke"], ".4g"),
        _number(row["loss_spread"], ".2g"),
        _number(row["peak_plain_mb"], ".0f"),
        _number(row["peak_ratio"], ".2f"),
        _number(row["above_baseline_ratio"], ".2f"),
        _number(row["plain_over_stored"], ".1f"),
        _number(row["time_ratio"], ".2f"),
        _number(row["step_time_ratio"], ".2f"),
    ]


def _code(text: str) -> str:
    return f"`{text}`"


def _number(text: str, form: str) -> str:
    return format(float(text), form) if text not in ("", "nan") else "–"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    written = [f"| {' | '.join(line)} |" for line in (head, *lines)]
    written.insert(1, "|" + "---|" * len(head))
    return "\n".join(written) + "\n"


def page_with(text: str, new: str) -> str:
    """The page `text` with `new` between its two marks."""
    before, rest = text.split(START)
    return before + START + "\n" + new + "\n" + END + rest.split(END)[1]


def main() -> int:
    made = tables(read())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
