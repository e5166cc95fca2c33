"""Weights at a loss budget: bits a weight beside other ways, predicted and measured rise.

python benchmarks/store/weights.py --data ../shared/data --trained trained --seeds 0,1,2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from store_rows import put
from torch import Tensor
from trained import NAMES, Trained, store_loss, trained

import contestants
from encke import store
from encke.store.curvature import calibrate

BUDGETS = (1e-4, 1e-3, 1e-2)
KEY = ("network", "seed", "method", "budget")


def measure(found: Trained, budgets: tuple[float, ...]) -> list[dict[str, Any]]:
    model, values = found.model, found.values
    before, unseen = found.loss(found.calibration), found.loss(found.unseen)
    state = contestants.floats(model)
    rows: list[dict[str, Any]] = []

    def row(method: str, budget: float | None, bits: float, decoded: dict[str, Tensor]) -> None:
        with contestants.instead(model, decoded):
            after = store_loss(model, found.calibration), store_loss(model, found.unseen)
        rows.append(
            {
                "network": found.name,
                "seed": found.seed,
                "method": method,
                "budget": budget,
                "bits": bits / values,
                "rise": (after[0] - before) / before,
                "unseen_rise": (after[1] - unseen) / unseen,
                "predicted": None,
                "seconds": None,
                "weights": values,
                "loss": before,
            }
        )

    inputs = calibrate(model, found.calibration[:4], found.objective).inputs
    moments = {n: m.matrices[0] for n, m in inputs.items() if len(m.matrices) == 1}
    for name, coder in (
        ("bf16", contestants.bf16),
        ("int8 per row", contestants.int8),
        ("4 bits, groups of 32", contestants.groups_of_4_bits),
        ("zstd", contestants.zstd),
        ("ZipNN", contestants.zipnn),
    ):
        decoded, bits = coder(state)
        row(name, None, bits, decoded)
    decoded, bits = contestants.gptq_4_bits(state, moments)
    row("4 bits a row, GPTQ", None, bits, decoded)

    def rise(decoded: dict[str, Tensor]) -> float:
        with contestants.instead(model, decoded):
            return store_loss(model, found.calibration) - before

    for budget in budgets:
        for name, coder in (("uniform bound", contestants.uniform), ("SZ3", contestants.sz3)):
            (decoded, bits), _ = contestants.at_loss(coder, state, rise, budget * before)
            row(name, budget, bits, decoded)
        for name, feedback in (("store", True), ("store, nearest", False)):
            _stored(found, budget, feedback, name, row, rows)
    return rows


def _stored(
    found: Trained, budget: float, feedback: bool, name: str, row: Any, rows: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.encke"
        begun = time.perf_counter()
        done = store.save(
            path,
            found.model,
            loss=budget,
            data=found.calibration,
            objective=found.objective,
            feedback=feedback,
        )
        seconds = time.perf_counter() - begun
        decoded = store.load(path)["model"]
    kept = {n: x for n, x in decoded.items() if x.is_floating_point()}
    row(name, budget, 8.0 * done.nbytes, kept)
    told = done.report["budget"]
    rows[-1] |= {"predicted": told["predicted"] / told["loss"], "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trained", type=Path, required=True, help="folder of networks")
    parser.add_argument("--networks", default=",".join(NAMES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--budgets", default="1e-4,1e-3,1e-2")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    budgets = tuple(float(text) for text in arguments.budgets.split(","))
    for name in arguments.networks.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            found = trained(name, seed, root=arguments.data, folder=arguments.trained)
            rows = measure(found, budgets)
            put("store_weights.csv", rows, key=KEY)
            for row in rows:
                print(*(f"{k}={v}" for k, v in row.items() if v is not None), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
