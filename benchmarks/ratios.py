"""Compressed sizes of the fixtures, byte for byte: a change of one byte shows in review.

    python benchmarks/ratios.py            compare with results/ratios.csv
    python benchmarks/ratios.py --write    rewrite it

The codec `lossless` is left out: its size is decided by the zstd library installed.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import torch

import encke
import fixtures
from encke.bound import (
    Absolute,
    Bound,
    FixedRate,
    PointwiseRelative,
    RangeRelative,
    RmsRelative,
)

PATH = Path(__file__).parent / "results" / "ratios.csv"
SEED = 1

#: (codec, dither, bounds)
SETTINGS: tuple[tuple[str, bool, tuple[Bound, ...]], ...] = (
    *(
        (codec, dither, (RangeRelative(2e-1), RangeRelative(5e-2), RangeRelative(1e-3)))
        for codec in ("fixed", "entropy", "predict")
        for dither in (False, True)
    ),
    ("fixed", False, (Absolute(1e-3), PointwiseRelative(1e-2), RmsRelative(1e-1))),
    ("entropy", False, (Absolute(1e-3), PointwiseRelative(1e-2), RmsRelative(1e-1))),
    ("group", False, (FixedRate(2), FixedRate(4), FixedRate(8))),
)

Key = tuple[str, str, str, str]


def sizes() -> Iterator[tuple[Key, int]]:
    """(fixture, bound, codec, dither) and the bytes it takes, with the native backend."""
    torch.set_num_threads(1)
    for name, make in fixtures.FIXTURES.items():
        x = make()
        for codec, dither, bounds in SETTINGS:
            for bound in bounds:
                try:
                    packed = encke.compress(
                        x, bound, codec=codec, dither=dither, seed=SEED, backend="native"
                    )
                except encke.UnsupportedError:
                    continue  # this codec does not take this combination, and says so
                key = (name, f"{bound.kind} {bound.number:g}", codec, "yes" if dither else "no")
                yield key, packed.nbytes


def read(path: Path = PATH) -> dict[Key, int]:
    with path.open(newline="", encoding="utf-8") as file:
        return {
            (row["fixture"], row["bound"], row["codec"], row["dither"]): int(row["bytes"])
            for row in csv.DictReader(file)
        }


def write(measured: dict[Key, int], path: Path = PATH) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["fixture", "bound", "codec", "dither", "bytes", "ratio"])
        for key, size in measured.items():
            plain = fixtures.FIXTURES[key[0]]().numel() * 4
            table.writerow([*key, size, f"{plain / size:.3f}"])


def difference(committed: dict[Key, int], measured: dict[Key, int]) -> list[str]:
    """One readable line for each size that is not what was committed."""
    lines = []
    for key in sorted(committed.keys() | measured.keys()):
        before, after = committed.get(key), measured.get(key)
        if before == after:
            continue
        fixture, bound, codec, dither = key
        what = f"{fixture}, {bound}, {codec}" + (" with dither" if dither == "yes" else "")
        if before is None:
            lines.append(f"{what}: {after:,} bytes, not in the committed table")
        elif after is None:
            lines.append(f"{what}: committed with {before:,} bytes, no longer measured")
        else:
            lines.append(
                f"{what}: {before:,} → {after:,} bytes "
                f"({after - before:+,}, {100 * (after / before - 1):+.2f} %)"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare or rewrite the table of sizes.")
    parser.add_argument("--write", action="store_true", help="rewrite results/ratios.csv")
    options = parser.parse_args()
    measured = dict(sizes())
    committed = read() if PATH.exists() else {}
    lines = difference(committed, measured)
    print("\n".join(lines) or f"all {len(measured)} sizes are as committed")
    if options.write:
        write(measured)
    elif lines:
        raise SystemExit(
            "sizes differ; if that is meant, run with --write and commit the table"
        )


if __name__ == "__main__":
    main()
