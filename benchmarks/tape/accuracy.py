"""Training to an accuracy, way by way and seed by seed: results/tape_accuracy.csv.

    ENCKE_DATA=… python benchmarks/tape/accuracy.py --tasks cifar10 --seeds 0 1 2

The same seed gives the same weights, batches and augmentation to every way. The curves go to
results/tape_curves.csv. Runs that are in the file are not repeated.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))

from rows import Rows
from ways import WAYS

from encke.study import data, zoo

COLUMNS = ("task", "way", "seed", "steps", "metric", "score", "loss", "ratio", "seconds")
CURVE = ("task", "way", "seed", "step", "loss", "score", "ratio")


@dataclass(frozen=True)
class Task:
    """A network, its data and how long it trains."""

    model: str
    source: str
    train: int
    test: int
    batch: int
    epochs: int
    rate: float
    options: tuple[tuple[str, object], ...] = ()


TASKS = {
    "cifar10": Task("resnet_cifar", "cifar10", 8192, 10000, 128, 5, 0.2, (("depth", 8),)),
    "fashion": Task(
        "resnet_cifar",
        "fashion_mnist",
        8192,
        10000,
        128,
        4,
        0.2,
        (("channels", 1), ("depth", 8)),
    ),
    "shakespeare": Task(
        "gpt",
        "text",
        0,
        0,
        16,
        0,
        1e-3,
        (("n_layer", 4), ("n_head", 4), ("n_embd", 128), ("block_size", 128)),
    ),
}
_TEXT_STEPS = 300
_CURVE_EXAMPLES = 2000  # of the test split, along the way; in the end all of it


def batches(
    task: Task, source: object, seed: int
) -> Iterator[tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
    epoch = 0
    augment = task.source != "fashion_mnist"
    while True:
        yield from source.batches(  # type: ignore[attr-defined]
            "train", task.batch, 1000 * seed + epoch, augment=augment, drop_last=True
        )
        epoch += 1


def run(name: str, way: str, seed: int, curve: Rows) -> dict[str, object]:
    task = TASKS[name]
    options = dict(task.options)
    if task.source == "text":
        source = data.load("text", file=_text_file(), block_size=options["block_size"])
        options["vocab"] = source.vocab
        steps = _TEXT_STEPS
    else:
        source = data.load(task.source).head(train=task.train, test=task.test)
        options["classes"] = len(source.classes)
        steps = task.epochs * (task.train // task.batch)
    torch.manual_seed(seed)
    model = zoo.model(task.model, **options)
    net = model.build(seed=seed)
    if task.source == "text":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(net.parameters(), lr=task.rate)
    else:
        optimizer = torch.optim.SGD(
            net.parameters(), lr=task.rate, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, task.rate, total_steps=steps)
    fitted = WAYS[way].fit(net, optimizer)
    begun, ratios, recent = time.perf_counter(), [], []
    feed = batches(task, source, seed)
    for step in range(1, steps + 1):
        inputs, target = next(feed)
        if fitted.tape is not None:
            fitted.tape.ledger.reset_peak()
        with fitted.around():
            loss = model.loss(net(*inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        recent.append(float(loss.detach()))
        if fitted.tape is not None:
            ratios.append(fitted.tape.ledger.plain_peak / fitted.tape.ledger.stored_peak)
        if step % max(1, steps // 10) == 0 or step == steps:
            score, _ = evaluate(net, source, task, most=_CURVE_EXAMPLES)
            now = {"step": step, "loss": sum(recent) / len(recent), "score": score}
            curve.put(
                task=name, way=way, seed=seed, ratio=ratios[-1] if ratios else None, **now
            )
            recent.clear()
    score, loss_value = evaluate(net, source, task)
    after = ratios[len(ratios) // 5 :]
    return {
        "task": name,
        "way": way,
        "seed": seed,
        "steps": steps,
        "metric": "validation loss" if task.source == "text" else "accuracy",
        "score": score,
        "loss": loss_value,
        "ratio": sum(after) / len(after) if after else None,
        "seconds": time.perf_counter() - begun,
    }


@torch.no_grad()
def evaluate(
    net: torch.nn.Module, source: object, task: Task, most: int = sys.maxsize
) -> tuple[float, float]:
    """Accuracy and loss on the test split, or its head; for text, the loss twice."""
    was = net.training
    net.eval()
    right = count = 0
    total = 0.0
    for number, (inputs, target) in enumerate(
        source.batches("test", 250 if task.train else 32)
    ):  # type: ignore[attr-defined]
        if count >= most or (not task.train and number == 20):
            break
        output = net(*inputs)
        output = output.reshape(-1, output.shape[-1])
        flat = target.reshape(-1)
        total += float(F.cross_entropy(output, flat, reduction="sum"))
        right += int((output.argmax(1) == flat).sum())
        count += flat.numel()
    net.train(was)
    loss = total / max(1, count)
    return (right / count if task.train else loss), loss


def _text_file() -> str:
    import os

    return str(Path(os.environ.get("ENCKE_DATA", ".")) / "tinyshakespeare.txt")


def summary(rows: Rows) -> None:
    """Mean and spread over seeds, way by way."""
    import csv

    groups: dict[tuple[str, str], list[float]] = {}
    with rows.path.open(newline="") as file:
        for row in csv.DictReader(file):
            groups.setdefault((row["task"], row["way"]), []).append(float(row["score"]))
    for (task, way), scores in groups.items():
        mean = sum(scores) / len(scores)
        spread = math.sqrt(sum((s - mean) ** 2 for s in scores) / max(1, len(scores) - 1))
        print(f"{task:12} {way:24} {mean:.4f} ± {spread:.4f} over {len(scores)} seeds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--ways", nargs="+", default=["plain", "Encke"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rows = Rows("tape_accuracy.csv", COLUMNS, ("task", "way", "seed"))
    curve = Rows("tape_curves.csv", CURVE, ("task", "way", "seed", "step"))
    for task in args.tasks:
        for seed in args.seeds:
            for way in args.ways:
                if rows.has(task=task, way=way, seed=seed):
                    continue
                row = run(task, way, seed, curve)
                rows.put(**row)
                print(*(row[k] for k in COLUMNS if k != "metric"), flush=True)
    summary(rows)


if __name__ == "__main__":
    main()
