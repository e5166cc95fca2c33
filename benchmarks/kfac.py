"""Steps and processor time to a target, optimizer by optimizer: results/kfac.csv.

    ENCKE_DATA=… python benchmarks/kfac.py --tasks autoencoder digits cifar10 gpt

For each seed the ways run one after the other in one process, on one thread, from the same
weights and with the same batches, so that their times see the same machine. The time counted is
`time.process_time` of the steps: forward, backward, exchange and update, not the looking at the
target. Rows that are in the file are not measured again.

K-FAC "compressed" sends its factors through the codec as between ranks (`Rounded`). With
`gradients` compressed, each gradient passes through a dithered codec with a bound of √(3·0.01)
of its root mean square, which is at least the noise that the wire's rule takes in its place.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent / "tape"))

from rows import Rows

from encke import RmsRelative, compress
from encke.study.zoo import Batch
from encke.wire.kfac import KFAC, UncoveredWarning
from encke.wire.kfac.collectives import Rounded
from kfac_tasks import TASKS, Task

COLUMNS = (
    "task", "way", "gradients", "seed", "metric", "target", "steps", "seconds", "best",
    "milliseconds_a_step", "factor_ratio", "gradient_ratio",
)  # fmt: skip
KEY = ("task", "way", "gradients", "seed")
WAYS = ("sgd", "adam", "muon", "kfac", "kfac compressed")
GRADIENTS = ("exact", "compressed")

#: ρ = 0.01: compression adds at most a hundredth of the gradient's own variance.
GRADIENT_BOUND = RmsRelative(math.sqrt(3 * 0.01))


@dataclass
class Way:
    """Optimizers that step together, and K-FAC before them where there is one."""

    optimizers: Sequence[torch.optim.Optimizer]
    pre: KFAC | None = None
    comm: Rounded | None = None

    def step(self) -> None:
        if self.pre is not None:
            self.pre.step()
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()


def make(name: str, model: nn.Module, task: Task, seed: int) -> Way:
    rates = task.rates[name.split()[0]]
    every = list(model.parameters())
    if name == "sgd":
        return Way([torch.optim.SGD(every, lr=rates["lr"], momentum=0.9)])
    if name == "adam":
        return Way([torch.optim.Adam(every, lr=rates["lr"])])
    if name == "muon":
        flat = [p for p in every if p.dim() == 2]
        rest = [p for p in every if p.dim() != 2]
        return Way(
            [
                torch.optim.Muon(flat, lr=rates["lr"], weight_decay=0.0),
                torch.optim.Adam(rest, lr=rates["adam"]),
            ]
        )
    comm = Rounded() if name == "kfac compressed" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncoveredWarning)
        pre = KFAC(model, comm=comm, seed=seed, factor_interval=5, inverse_interval=20, **rates)
    return Way([torch.optim.SGD(every, lr=rates["lr"], momentum=0.9)], pre, comm)


class Gradients:
    """Exact, or what the codec leaves of them."""

    def __init__(self, *, compressed: bool) -> None:
        self._compressed = compressed
        self._seed = 0
        self.plain = self.sent = 0

    def __call__(self, model: nn.Module) -> None:
        if not self._compressed:
            return
        for parameter in model.parameters():
            if parameter.grad is not None:
                self._seed += 1
                packed = compress(
                    parameter.grad, GRADIENT_BOUND, codec="fixed", dither=True, seed=self._seed
                )
                parameter.grad = packed.decompress()
                self.plain += packed.plain_nbytes
                self.sent += packed.nbytes


def one_step(
    task: Task, model: nn.Module, way: Way, batch: Batch, gradients: Callable[[nn.Module], None]
) -> None:
    way.zero_grad()
    output: Tensor = model(*batch.inputs)
    if way.pre is not None:
        # The class is the last dimension of a language model's scores, the second of others'.
        way.pre.sample(output, loss=task.kfac_loss, dim=-1)  # type: ignore[arg-type]
    task.loss(output, batch).backward()
    gradients(model)
    way.step()


def run(task: Task, name: str, kind: str, seed: int) -> dict[str, object]:
    model = task.build(seed)
    way = make(name, model, task, seed)
    gradients = Gradients(compressed=kind == "compressed")
    batches = task.batches(seed)
    seconds, best, step = 0.0, math.inf, 0
    reached: int | None = None
    while reached is None and step < task.most_steps:
        step += 1
        batch = next(batches)
        begun = time.process_time()
        one_step(task, model, way, batch, gradients)
        seconds += time.process_time() - begun
        if step % task.every:
            continue
        score = task.score(model)
        if not math.isfinite(score):
            break
        best = min(best, score)
        reached = step if score <= task.target else None
    comm = way.comm
    return {
        "task": task.name,
        "way": name,
        "gradients": kind,
        "seed": seed,
        "metric": task.metric,
        "target": task.target,
        "steps": reached,
        "seconds": seconds,
        "best": best,
        "milliseconds_a_step": 1000 * seconds / step,
        "factor_ratio": comm.plain_bytes / comm.sent_bytes
        if comm and comm.sent_bytes
        else None,
        "gradient_ratio": gradients.plain / gradients.sent if gradients.sent else None,
    }


def summary(rows: Rows) -> None:
    """Means over seeds; a way that misses the target once has no mean."""
    import csv

    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    with rows.path.open(newline="") as file:
        for row in csv.DictReader(file):
            groups.setdefault((row["task"], row["way"], row["gradients"]), []).append(row)
    for (task, way, kind), found in groups.items():
        steps = [row["steps"] for row in found]
        mean = f"{sum(map(int, steps)) / len(steps):7.0f}" if all(steps) else "      –"
        seconds = sum(float(row["seconds"]) for row in found) / len(found)
        best = sum(float(row["best"]) for row in found) / len(found)
        print(
            f"{task:12} {way:16} {kind:11} {mean} steps {seconds:7.2f} s, best {best:.4g}, "
            f"{len(found)} seeds"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--gradients", nargs="+", default=list(GRADIENTS), choices=GRADIENTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--file", default="kfac.csv", help="in results/; one process writes it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows(args.file, COLUMNS, KEY)
    for task in args.tasks:
        for seed in args.seeds:
            for way in args.ways:
                for kind in args.gradients:
                    if rows.has(task=task, way=way, gradients=kind, seed=seed):
                        continue
                    row = run(TASKS[task], way, kind, seed)
                    rows.put(**row)
                    print(
                        *(row[c] for c in COLUMNS if c not in ("metric", "target")), flush=True
                    )
    summary(rows)


if __name__ == "__main__":
    main()
