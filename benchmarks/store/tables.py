"""The tables of docs/store.md, from the result files of the store's benchmarks.

python benchmarks/store/tables.py --write
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

from store_rows import read

PAGE = Path(__file__).parents[2] / "docs" / "store.md"
Row = dict[str, str]
_ORDER = (
    "store",
    "store, nearest",
    "uniform bound",
    "SZ3",
    "4 bits a row, GPTQ",
    "4 bits, groups of 32",
    "int8 per row",
    "bf16",
    "ZipNN",
    "zstd",
)


def weights() -> str:
    rows = read("store_weights.csv")
    networks = list(dict.fromkeys(row["network"] for row in rows))
    lines = []
    for method in _ORDER:
        budgets = sorted({r["budget"] for r in rows if r["method"] == method}, key=_or_zero)
        for budget in budgets:
            cells = [_weights_cell(rows, network, method, budget) for network in networks]
            lines.append([method, budget or "–", *cells])
    head = ["way", "budget", *(f"{n}: bits, rise, unseen (seeds)" for n in networks)]
    return _markdown(head, lines)


def _weights_cell(rows: list[Row], network: str, method: str, budget: str) -> str:
    found = [
        r for r in rows if (r["network"], r["method"], r["budget"]) == (network, method, budget)
    ]
    if not found:
        return "not run"
    bits, rise, unseen = (_mean(found, key) for key in ("bits", "rise", "unseen_rise"))
    return f"**{bits:.2f}**, {rise:.1e}, {unseen:.1e} ({len(found)})"


def predicted() -> str:
    rows = [r for r in read("store_weights.csv") if r["predicted"]]
    lines = [
        [
            r["network"],
            r["seed"],
            r["method"],
            r["budget"],
            f"{float(r['predicted']):.2e}",
            f"{float(r['rise']):.2e}",
            f"{float(r['predicted']) / float(r['rise']):.2f}",
            f"{float(r['seconds']):.0f}",
        ]
        for r in rows
    ]
    head = ["network", "seed", "way", "budget", "predicted", "measured", "quotient", "seconds"]
    return _markdown(head, lines)


def seeds() -> str:
    rows = read("store_seeds.csv")
    if not rows:
        return "not run\n"
    rises = [float(r["rise"]) / float(r["budget"]) for r in rows]
    unseen = [float(r["unseen_rise"]) / float(r["budget"]) for r in rows]
    spread = (sum((u - mean(unseen)) ** 2 for u in unseen) / max(1, len(unseen) - 1)) ** 0.5
    line = [
        rows[0]["network"],
        str(len(rows)),
        f"{max(rises):.2f}",
        f"{mean(rises):.2f}",
        f"{mean(unseen):.2f}",
        f"{spread / len(unseen) ** 0.5:.2f}",
    ]
    head = [
        "network",
        "saves",
        "largest rise / budget",
        "mean",
        "mean on unseen data",
        "its standard error",
    ]
    return _markdown(head, [line])


def checkpoints() -> str:
    rows = read("store_checkpoints.csv")
    kinds = list(dict.fromkeys((r["network"], r["what"]) for r in rows))
    lines = []
    for network, what in kinds:
        found = [r for r in rows if (r["network"], r["what"]) == (network, what)]
        ratios = [float(r["ratio"]) for r in found]
        apart = [abs(float(r["loss_apart"])) for r in found if r["loss_apart"]]
        lines.append(
            [
                network,
                what,
                f"{mean(ratios):.1f}×",
                f"{min(ratios):.1f}×",
                f"{max(apart):.1e}" if apart else "",
                str(len(found)),
            ]
        )
    head = ["network", "file", "ratio", "smallest", "loss apart after 50 steps", "seeds"]
    return _markdown(head, lines)


def speed() -> str:
    columns = {
        "way": "way",
        "threads": "threads",
        "save_gb_per_s": "save, GB/s",
        "load_gb_per_s": "load, GB/s",
        "ratio": "ratio",
        "peak_over_largest_tensor": "peak memory above the state, largest tensor = 1",
        "save_to_500_mb_per_s": "save to a disk of 500 MB/s, s",
    }
    lines = [
        [_short(row[key]) if key not in ("way", "threads") else row[key] for key in columns]
        for row in read("store_speed.csv")
    ]
    return _markdown(list(columns.values()), lines)


def pruned() -> str:
    rows = read("store_pruned.csv")
    lines = []
    for network in dict.fromkeys(r["network"] for r in rows):
        found = [r for r in rows if r["network"] == network]
        lines.append(
            [
                network,
                str(len(found)),
                f"{_mean(found, 'density'):.3f}",
                f"{_mean(found, 'accuracy_plain'):.2f}",
                f"{_mean(found, 'accuracy_pruned'):.2f}",
                f"{_mean(found, 'accuracy_stored'):.2f}",
                f"{_mean(found, 'dense_ratio'):.1f}×",
                f"{_mean(found, 'whole_ratio'):.1f}×",
            ]
        )
    head = [
        "network",
        "seeds",
        "kept",
        "accuracy, trained",
        "pruned",
        "stored",
        "fully connected layers",
        "whole file",
    ]
    return _markdown(head, lines)


def faults() -> str:
    rows = read("store_faults.csv")
    head = ["fault", "tried", "right", "refused", "partly", "wrong"]
    return _markdown(head, [[row[key] for key in head] for row in rows])


TABLES: dict[str, Callable[[], str]] = {
    "weights": weights,
    "predicted": predicted,
    "seeds": seeds,
    "checkpoints": checkpoints,
    "speed": speed,
    "pruned": pruned,
    "faults": faults,
}


def page_with(text: str) -> str:
    """The page `text` with every table made anew between its marks."""
    for name, make in TABLES.items():
        start, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = text.split(start)
        text = before + start + "\n" + make() + "\n" + end + rest.split(end)[1]
    return text


def _mean(rows: Sequence[Row], key: str) -> float:
    return mean(float(row[key]) for row in rows)


def _or_zero(text: str) -> float:
    return float(text) if text else 0.0


def _short(text: str) -> str:
    return f"{float(text):.2f}"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    written = [f"| {' | '.join(line)} |" for line in (head, *lines)]
    written.insert(1, "|" + "---|" * len(head))
    return "\n".join(written) + "\n"


def main() -> int:
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for name, make in TABLES.items():
            print(name, make(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
