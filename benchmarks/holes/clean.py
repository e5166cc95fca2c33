"""Fields and photographs without holes: `predict` as it chooses, at its best, and SZ3.

    python benchmarks/holes/clean.py ../shared/data     results/predict_choice.csv

"Best" is the smallest of the plan that was chosen and of Lorenzo's six, so "lost" is what a
wrong choice costs. The photographs are the two that scikit-learn brings along, 640 wide and
cropped to 624.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cases
import numpy as np
import torch
from run import RESULTS, sz3_bytes
from sklearn.datasets import load_sample_image

import encke
from encke.codec.predict import predict_quantiser
from encke.ops.select import load

BOUNDS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
LORENZO = [(0, 1, order, axes) for order in (1, 2) for axes in (1, 2, 3)]


def fields(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    for field in cases.fields(folder):
        yield field.name, field.values
    for name in ("china.jpg", "flower.jpg"):
        photograph = load_sample_image(name).astype(np.float32)
        for width in (640, 624):
            image = photograph[:, :width]
            yield f"{name} {width}, grey", image.mean(2)
            yield f"{name} {width}, red", image[:, :, 0]
            yield f"{name} {width}, colours last", image
            yield f"{name} {width}, colours first", image.transpose(2, 0, 1)


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    kernels = load("native")
    for name, values in fields(folder):
        x = torch.from_numpy(np.ascontiguousarray(values))
        for bound in BOUNDS:
            error = bound * float(x.max() - x.min())
            q = predict_quantiser(x, error, dither=False, seed=0)
            chosen = kernels.predict_encode(x, tuple(x.shape), q, (0,))
            forced = [
                kernels.predict_encode(x, tuple(x.shape), q, plan).numel() for plan in LORENZO
            ]
            best = min(chosen.numel(), *forced)
            ours = encke.compress(x, encke.Absolute(error)).nbytes
            per = 8 / x.numel()
            yield {
                "field": name,
                "bound": bound,
                "mode": ("verbatim", "Lorenzo", "regression", "interpolation")[int(chosen[32])],
                "bits": round(chosen.numel() * per, 4),
                "best_bits": round(best * per, 4),
                "lost": round(chosen.numel() / best - 1, 4),
                "auto_bits": round(ours * per, 4),
                "sz3_bits": round(sz3_bytes(x.numpy(), error) * per, 4),
                "of_sz3": round(sz3_bytes(x.numpy(), error) / ours, 3),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where climate.npz is")
    found = list(rows(parser.parse_args().folder))
    path = RESULTS / "predict_choice.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(found)
    print(f"{path}: {len(found)} rows")


if __name__ == "__main__":
    main()
