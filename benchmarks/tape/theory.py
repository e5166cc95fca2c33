"""Predicted against measured gradient error, layer by layer: results/tape_theory.csv.

    python benchmarks/tape/theory.py --models resnet50 gpt

Every kept tensor has its exact form beside it for a few steps, so each op's gradients are
computed both ways. Rows are sums over those steps; `predicted` is the closed form where
`products` is above zero, a probe with a fresh error elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from rows import Rows

import encke
from encke.control.adaptive import Adaptive
from encke.study import zoo
from encke.tape import GradientEffect, SavedTensor, StorageDecision

COLUMNS = (
    "model",
    "consumer",
    "of",
    "products",
    "steps",
    "predicted",
    "measured",
    "measured_over_predicted",
    "kind",
)


class Checked(Adaptive):
    """The controller, with every tensor checked once its bounds are set."""

    everywhere = False

    def treat(self, sight: SavedTensor) -> StorageDecision:
        found = super().treat(sight)
        return replace(found, check=True, observe=True) if self.everywhere else found


def measure(name: str, batch: int, warm: int, steps: int) -> list[dict[str, object]]:
    torch.manual_seed(0)
    model = zoo.model(name)
    net = model.build(seed=0)
    optimizer = (
        torch.optim.AdamW(net.parameters(), lr=1e-4)
        if name in ("gpt", "vit_tiny")
        else torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    )
    policy = Checked(optimizers=[optimizer], model=net, reference="momentum", guard=0)
    tape = encke.attach(net, policy=policy)
    seen: list[GradientEffect] = []
    for i in range(warm + steps):
        if i == warm:
            policy.everywhere = True
            tape.listeners.append(seen.append)
        optimizer.zero_grad()
        model.loss_of(net, model.sample_batch(batch, seed=i)).backward()
        optimizer.step()
    sums: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for e in seen:
        if e.measured is None:
            continue
        if e.parameter_square > 0 and e.predicted > 0:
            pair = e.predicted, e.measured[0]
            kind = "product" if e.products else "parameter"
        else:
            pair, kind = (e.stream, e.measured[1]), "stream"
        total = sums[str(e.consumer), str(e.site), kind]
        total[0], total[1], total[2] = total[0] + pair[0], total[1] + pair[1], e.products
    return [
        {
            "model": name,
            "consumer": consumer,
            "of": of,
            "products": fan,
            "steps": steps,
            "predicted": predicted,
            "measured": measured,
            "measured_over_predicted": measured / predicted if predicted else None,
            "kind": kind,
        }
        for (consumer, of, kind), (predicted, measured, fan) in sums.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["resnet50", "gpt"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--warm", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    rows = Rows("tape_theory.csv", COLUMNS, ("model", "consumer", "of", "kind"))
    for name in args.models:
        found = measure(name, args.batch, args.warm, args.steps)
        for row in found:
            rows.put(**row)
        ratios = sorted(
            float(r["measured_over_predicted"])  # type: ignore[arg-type]
            for r in found
            if r["kind"] == "product" and r["measured_over_predicted"]
        )
        within = sum(0.8 <= r <= 1.2 for r in ratios)
        print(
            f"{name}: {within} of {len(ratios)} product layers within 20 %, "
            f"from {ratios[0]:.2f} to {ratios[-1]:.2f}"
        )


if __name__ == "__main__":
    main()
