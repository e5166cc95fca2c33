"""Twenty saves of one network with twenty sets of calibration data: is the promise kept?

python benchmarks/store/seeds.py --data ../shared/data --trained trained
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from store_rows import put
from trained import store_loss, trained

import contestants
from encke import store

BUDGET = 1e-3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trained", type=Path, required=True, help="folder of networks")
    parser.add_argument("--network", default="llama")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="go on from this one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = trained(arguments.network, 0, root=arguments.data, folder=arguments.trained)
    unseen = found.loss(found.unseen)
    for seed in range(arguments.first, arguments.seeds):
        drawn = found.source.batches("train", 16, seed=500 + seed)
        batches = [(b.inputs[0], b.target) for b, _ in zip(drawn, range(16), strict=False)]
        before = store_loss(found.model, batches)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "m.encke"
            done = store.save(
                path, found.model, loss=BUDGET, data=batches, objective=found.objective
            )
            decoded = store.load(path)["model"]
        with contestants.instead(found.model, decoded):
            after, other = (store_loss(found.model, b) for b in (batches, found.unseen))
        told = done.report["budget"]
        row = {
            "network": found.name,
            "calibration": seed,
            "budget": BUDGET,
            "bits": 8 * done.nbytes / found.values,
            "rise": (after - before) / before,
            "predicted": told["predicted"] / told["loss"],
            "unseen_rise": (other - unseen) / unseen,
        }
        put("store_seeds.csv", [row], key=("network", "calibration"))
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
