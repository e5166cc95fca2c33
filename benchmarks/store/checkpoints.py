"""Whole checkpoints: how small, how they go on, and how small their deltas are.

python benchmarks/store/checkpoints.py --data ../shared/data --trained trained --seeds 0,1,2

Each training goes on from its end with a constant rate of a tenth. The resumed training takes
the same batches as the uninterrupted one.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from store_rows import put
from trained import Trained, loss_of, store_loss, trained

from encke import store

KEY = ("network", "seed", "what")
BUDGET = 1e-3
AHEAD = 50


def advance(model: Any, optimizer: Any, batches: Any, steps: int) -> None:
    model.train()
    for batch, _ in zip(batches, range(steps), strict=False):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure(found: Trained) -> list[dict[str, Any]]:
    plain = 4 * found.values * (3 if found.name != "resnet" else 2)
    rows: list[dict[str, Any]] = []

    def row(what: str, done: Any, seconds: float, apart: float | None = None) -> None:
        rows.append(
            {
                "network": found.name,
                "seed": found.seed,
                "what": what,
                "ratio": plain / done.nbytes,
                "bytes": done.nbytes,
                "links": done.links,
                "loss_apart": apart,
                "seconds": seconds,
            }
        )
        print(rows[-1], flush=True)

    for group in found.optimizer.param_groups:
        group["lr"] = 2e-4 if found.name != "resnet" else 1e-2
    advance(found.model, found.optimizer, found.steps(0), 50)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def save(model: Any, optimizer: Any, file: str, **options: Any) -> tuple[Any, float]:
            begun = time.perf_counter()
            done = store.save(folder / file, model, optimizer, loss=BUDGET,
                              data=found.calibration, objective=found.objective,
                              **options)  # fmt: skip
            return done, time.perf_counter() - begun

        full, seconds = save(found.model, found.optimizer, "full.encke")
        resumed, optimizer = copy.deepcopy((found.model, found.optimizer))
        store.load(folder / "full.encke", resumed, optimizer)
        whole, own = copy.deepcopy((found.model, found.optimizer))
        advance(whole, own, found.steps(1), AHEAD)
        advance(resumed, optimizer, found.steps(1), AHEAD)
        losses = [store_loss(m, found.calibration + found.unseen) for m in (whole, resumed)]
        row("full", full, seconds, (losses[1] - losses[0]) / losses[0])
        for apart in (5, 20, 100):
            model, adam = copy.deepcopy((found.model, found.optimizer))
            base, batches = "full.encke", found.steps(2)
            for link in range(2):  # the second is counted from a delta
                advance(model, adam, batches, apart)
                done, seconds = save(model, adam, f"{apart}-{link}.encke", base=folder / base)
                base = f"{apart}-{link}.encke"
            row(f"delta, {apart} steps apart", done, seconds)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trained", type=Path, required=True, help="folder of networks")
    parser.add_argument("--networks", default="gpt,llama")
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.networks.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            found = trained(name, seed, root=arguments.data, folder=arguments.trained)
            put("store_checkpoints.csv", measure(found), key=KEY)
    return 0


if __name__ == "__main__":
    sys.exit(main())
