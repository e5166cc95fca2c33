"""Pruned networks with a budget in accuracy: LeNet-300-100 and LeNet-5 on Fashion-MNIST.

python benchmarks/store/pruned.py --seeds 0,1,2

Trained, pruned by magnitude, trained again, then stored so that the accuracy on the test set
falls by at most 0.3 points below that of the pruned network. Bytes of the fully connected
layers are those of the whole file less what the other layers' own streams take.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from store_rows import put
from torch import nn

from encke import store
from encke.store.summary import tensor_bytes
from encke.study import data

KEY = ("network", "seed")
ALLOWED = 0.3


def lenet_300_100() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 300),
        nn.ReLU(),
        nn.Linear(300, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def lenet_5() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )


#: Network, and the shares of weights that are kept.
NETWORKS: dict[str, tuple[Any, dict[str, float]]] = {
    "LeNet-300-100": (lenet_300_100, {"1.weight": 0.035, "3.weight": 0.08, "5.weight": 0.3}),
    "LeNet-5": (
        lenet_5,
        {"0.weight": 0.7, "3.weight": 0.25, "7.weight": 0.03, "9.weight": 0.15},
    ),
}


def train(
    model: nn.Module, source: Any, epochs: int, rate: float, seed: int, after: Any
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    steps = epochs * (source.count("train") // 128)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(epochs):
        for batch in source.batches("train", 128, seed=seed + epoch, drop_last=True):
            loss = F.cross_entropy(model(batch.inputs[0]), batch.target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if after is not None:
                after()


def measure(name: str, seed: int, source: Any, epochs: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    make, density = NETWORKS[name]
    model = make()
    tests = [(b.inputs[0], b.target) for b in source.batches("test", 1000)]

    def accuracy(network: nn.Module) -> float:
        with torch.no_grad():
            right = sum(int((network(x).argmax(1) == y).sum()) for x, y in tests)
        return 100.0 * right / sum(len(y) for _, y in tests)

    train(model, source, epochs, 1e-3, seed, None)
    plain = accuracy(model)
    steps = 3  # in steps, so that each leaves enough to train with
    for number in range(1, steps + 1):
        share = {n: d ** (number / steps) for n, d in density.items()}
        pruning = store.prune(model, share)
        train(model, source, epochs, 1e-3, seed + 100 * number, pruning.apply)
    drawn = source.batches("train", 500, seed=seed)
    calibration = [(b.inputs[0], b.target) for b, _ in zip(drawn, range(6), strict=False)]
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.encke"
        done = store.save(path, model, accuracy=ALLOWED, evaluate=accuracy, data=calibration)
        with store.StateReader(path) as stored:
            sizes = tensor_bytes(stored)
            counts = {e.name: e.values for e in stored.entries}
        seconds = time.perf_counter() - begun
        other = make()
        store.load(path, other)
    modules = dict(model.named_modules())
    dense = [n for n in sizes if isinstance(modules[n.split("/")[1].split(".")[0]], nn.Linear)]
    rest = sum(size for name, size in sizes.items() if name not in dense)
    told = done.report["accuracy"]
    return {
        "network": name,
        "seed": seed,
        "accuracy_plain": plain,
        "accuracy_pruned": told["before"],
        "accuracy_stored": accuracy(other),
        "density": pruning.density,
        "dense_ratio": 4 * sum(counts[n] for n in dense) / (done.nbytes - rest),
        "whole_ratio": done.ratio,
        "bytes": done.nbytes,
        "seconds": seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    source = data.load("fashion_mnist")
    for name in arguments.networks.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            row = measure(name, seed, source, arguments.epochs)
            put("store_pruned.csv", [row], key=KEY)
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
