"""Steps and processor time to a target, optimizer by optimizer: results/kfac.csv.

    ENCKE_DATA=… python benchmarks/kfac.py --tasks autoencoder digits cifar10 gpt

For each seed the ways run one after the other in one process, on one thread, from the same
weights and with the same batches, so that their times see the same machine. The time counted is
`time.process_time` of the steps: forward, backward, exchange and update, not the looking at the
target. Rows that are in the file are not measured again.

The target is reached where the mean of the last five looks crosses it; between two looks the
crossing is interpolated. One lucky look does not count, with compression or without.

K-FAC "compressed" sends its factors through the codec as between ranks (`Rounded`). With
`gradients` compressed, one process stands for two ranks with half of the batch each: bounds are
those of the wire's own rule at a tolerance of 0.01, from the noise between the halves, and the
mean gradient passes through the wire's own messages with 1/√2 of that bound, which gives it the
variance that the mean of two coded gradients has. Encoding once and decoding twice, as a rank
does, is counted; finding the noise, which the wire has for nothing, is not.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent / "tape"))

from rows import Rows

from encke.ops.select import select
from encke.study.zoo import Batch
from encke.wire.kfac import KFAC, UncoveredWarning
from encke.wire.kfac.collectives import Rounded
from encke.wire.message import Coder, Stretch
from encke.wire.noise import NoiseRule
from encke.wire.protocol import Observation, Segment
from kfac_tasks import TASKS, Task

COLUMNS = (
    "task", "way", "gradients", "seed", "metric", "target", "steps", "seconds", "best",
    "milliseconds_a_step", "factor_ratio", "gradient_ratio",
)  # fmt: skip
KEY = ("task", "way", "gradients", "seed")
WAYS = ("sgd", "adam", "muon", "kfac", "kfac compressed")
GRADIENTS = ("exact", "compressed")

#: Compression adds at most this share of the gradient's own variance.
TOLERANCE = 0.01
WORLD = 2
SMOOTHED = 5  # looks whose mean is held against the target


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
    """Exact, or what the wire between two ranks leaves of them."""

    def __init__(self, task: Task, model: nn.Module, *, compressed: bool) -> None:
        self._task, self._compressed = task, compressed
        self._rule = NoiseRule(TOLERANCE)
        self._coder = Coder(codec="fixed", backend=select(torch.device("cpu"), None))
        # Without K-FAC's hooks, to look at the gradient of half a batch.
        self._beside = task.build(0) if compressed else None
        self._segments = [
            Segment(name=name, values=p.numel(), world=WORLD)
            for name, p in model.named_parameters()
        ]
        self._step = 0
        self.plain = self.sent = 0

    def look(self, model: nn.Module, batch: Batch) -> Tensor | None:
        """The gradients of half the batch, in steps in which the wire's rule looks."""
        self._step += 1
        if self._beside is None or not self._rule.observes(step=self._step):
            return None
        self._beside.load_state_dict(model.state_dict())
        self._beside.zero_grad()
        half = len(batch.target) // WORLD
        part = Batch(tuple(x[:half] for x in batch.inputs), batch.target[:half])
        self._task.loss(self._beside(*part.inputs), part).backward()
        return _flat(self._beside)

    def exchange(self, model: nn.Module, half: Tensor | None) -> float:
        """Put what is left of them in the gradients' place; processor seconds of that."""
        if not self._compressed:
            return 0.0
        begun = time.process_time()
        flat = _flat(model)
        stretches, start = [], 0
        for segment in self._segments:
            bound = self._rule.bound(segment, step=self._step)
            coded = None if bound is None else bound / math.sqrt(WORLD)
            stretches.append(Stretch(segment.name, start, start + segment.values, coded))
            start += segment.values
        message = self._coder.encode(flat, stretches, seed=self._step)
        decoded = torch.empty_like(flat)
        for _ in range(WORLD):
            self._coder.decode(message, stretches, decoded)
        for parameter, stretch in zip(model.parameters(), stretches, strict=True):
            if parameter.grad is not None:
                kept = decoded[stretch.start : stretch.stop]
                parameter.grad.copy_(kept.view_as(parameter.grad))
        taken = time.process_time() - begun
        self.plain += flat.nbytes
        self.sent += message.numel()
        if half is not None:
            self._learn(half, flat, stretches)
        return taken

    def _learn(self, half: Tensor, mean: Tensor, stretches: list[Stretch]) -> None:
        """The noise between two halves, from their mean and one of them."""
        for segment, stretch in zip(self._segments, stretches, strict=True):
            place = slice(stretch.start, stretch.stop)
            self._rule.observe(
                Observation(
                    segment=segment,
                    step=self._step,
                    bound=stretch.bound,
                    noise=2.0 * float((half[place] - mean[place]).square().mean()),
                    square=float(mean[place].square().mean()),
                )
            )


def _flat(model: nn.Module) -> Tensor:
    """All gradients, side by side."""
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
            for p in model.parameters()
        ]
    )


def one_step(
    task: Task, model: nn.Module, way: Way, batch: Batch, gradients: Gradients
) -> float:
    """Processor seconds of a step."""
    half = gradients.look(model, batch)
    begun = time.process_time()
    way.zero_grad()
    output: Tensor = model(*batch.inputs)
    if way.pre is not None:
        # The class is the last dimension of a language model's scores, the second of others'.
        way.pre.sample(output, loss=task.kfac_loss, dim=-1)  # type: ignore[arg-type]
    task.loss(output, batch).backward()
    seconds = time.process_time() - begun
    seconds += gradients.exchange(model, half)
    begun = time.process_time()
    way.step()
    return seconds + time.process_time() - begun


def crossing(looks: list[tuple[int, float]], target: float) -> float | None:
    """The step at which the mean of the last looks reaches the target; None if not yet.

    >>> looks = [(step, 10.0 - step) for step in range(8)]
    >>> crossing(looks, 5.5), crossing(looks, 4.5)
    (6.5, None)
    """

    def mean(end: int) -> float:
        return sum(score for _, score in looks[end - SMOOTHED : end]) / SMOOTHED

    if len(looks) < SMOOTHED or mean(len(looks)) > target:
        return None
    if len(looks) == SMOOTHED:
        return float(looks[-1][0])
    last, before = mean(len(looks)), mean(len(looks) - 1)
    share = (before - target) / (before - last)
    return looks[-2][0] + share * (looks[-1][0] - looks[-2][0])


def run(task: Task, name: str, kind: str, seed: int) -> dict[str, object]:
    model = task.build(seed)
    way = make(name, model, task, seed)
    gradients = Gradients(task, model, compressed=kind == "compressed")
    batches = task.batches(seed)
    seconds, step = 0.0, 0
    looks: list[tuple[int, float]] = []
    reached: float | None = None
    while reached is None and step < task.most_steps:
        step += 1
        seconds += one_step(task, model, way, next(batches), gradients)
        if step % task.every:
            continue
        looks.append((step, task.score(model)))
        if not math.isfinite(looks[-1][1]):
            break
        reached = crossing(looks, task.target)
    comm = way.comm
    return {
        "task": task.name,
        "way": name,
        "gradients": kind,
        "seed": seed,
        "metric": task.metric,
        "target": task.target,
        "steps": reached,
        "seconds": seconds if reached is None else seconds * reached / step,
        "best": min(score for _, score in looks),
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
        mean = f"{sum(map(float, steps)) / len(steps):7.1f}" if all(steps) else "      –"
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
