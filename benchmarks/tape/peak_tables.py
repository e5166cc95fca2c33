"""The tables of README.md and docs/peak.md, from benchmarks/results/peak.csv.

python benchmarks/tape/peak_tables.py --write
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peak.csv"
START, END = "<!-- peak: begin -->\n", "<!-- peak: end -->\n"
PAGES = {ROOT / "README.md": "short", ROOT / "docs" / "peak.md": "long"}
NAMES = {
    "gpt2": "GPT-2",
    "bert": "BERT",
    "llama": "LLaMA",
    "t5": "T5",
    "mixtral": "Mixtral",
    "vit": "ViT",
    "convnext": "ConvNeXt",
    "swin": "Swin",
    "resnet50": "ResNet-50",
    "resnet18": "ResNet-18",
    "vgg16": "VGG-16",
    "unet": "U-Net",
    "lstm": "LSTM",
    "gcn": "GCN",
}

Row = dict[str, str]
#: By model and batch, then by way: the rows of all seeds.
Cases = dict[tuple[str, str], dict[str, list[Row]]]


def read(path: Path = RESULTS) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cases(rows: Sequence[Row]) -> Cases:
    """The rows in the order of NAMES, smaller batches first."""
    order = list(NAMES)
    found: Cases = {}
    for row in sorted(rows, key=lambda r: (order.index(r["model"]), int(r["batch"]))):
        of_case = found.setdefault((row["model"], row["batch"]), {})
        of_case.setdefault(row["way"], []).append(row)
    return {case: ways for case, ways in found.items() if {"plain", "Encke"} <= ways.keys()}


def _worst(rows: Sequence[Row], column: str) -> float:
    return max(float(row[column]) for row in rows)


def _peak(ways: Mapping[str, Sequence[Row]], way: str) -> str:
    return f"{_worst(ways[way], 'peak_mb'):,.0f}" if way in ways else ""


def _time(ways: Mapping[str, Sequence[Row]], way: str) -> str:
    """Seconds of the whole training, for each step, relative to plain's."""
    if way not in ways:
        return ""
    own, plain = (
        statistics.fmean(float(r["seconds"]) / int(r["steps"]) for r in ways[name])
        for name in (way, "plain")
    )
    return f"{own / plain:.2f}"


def _losses(rows: Sequence[Row]) -> str:
    return ", ".join(f"{float(row['loss']):.3f}" for row in rows)


def short(rows: Sequence[Row]) -> str:
    """Peak, time and loss: what a user feels."""
    lines = [
        "| model, batch | peak, plain (MB) | `checkpoint` (MB) | **Encke** (MB) | "
        "time, `checkpoint` | **time, Encke** | loss, plain | loss, Encke |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (model, batch), ways in cases(rows).items():
        cells = [
            f"{NAMES[model]}, {batch}",
            _peak(ways, "plain"),
            _peak(ways, "checkpoint"),
            f"**{_peak(ways, 'Encke')}**",
            _time(ways, "checkpoint"),
            f"**{_time(ways, 'Encke')}**",
            _losses(ways["plain"]),
            _losses(ways["Encke"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def long(rows: Sequence[Row]) -> str:
    """Every way, and the quotients."""
    lines = [
        "| model, batch | plain | plain, pool | checkpoint | checkpoint, pool, head | Encke | "
        "of plain | of plain with pool | of checkpoint | first step | worst / typical | time |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (model, batch), ways in cases(rows).items():
        encke = _worst(ways["Encke"], "peak_mb")

        def of(way: str, ways: Mapping[str, Sequence[Row]] = ways, top: float = encke) -> str:
            return f"{top / _worst(ways[way], 'peak_mb'):.2f}" if way in ways else ""

        cells = [
            f"{NAMES[model]}, {batch}",
            _peak(ways, "plain"),
            _peak(ways, "plain, pool"),
            _peak(ways, "checkpoint"),
            _peak(ways, "checkpoint, pool, head"),
            f"{encke:,.0f}",
            of("plain"),
            of("plain, pool"),
            of("checkpoint"),
            f"{_worst(ways['Encke'], 'first_mb'):,.0f}",
            f"{_worst(ways['Encke'], 'worst_over_typical'):.2f}",
            _time(ways, "Encke"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(text: str, table: str) -> str:
    """A page with its table replaced."""
    before, rest = text.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{table}\n{END}{after}"


def main() -> None:
    rows = read()
    makers = {"short": short, "long": long}
    for path, kind in PAGES.items():
        made = page(path.read_text(encoding="utf-8"), makers[kind](rows))
        if "--write" in sys.argv:
            path.write_text(made, encoding="utf-8")
        else:
            print(makers[kind](rows))


if __name__ == "__main__":
    main()
