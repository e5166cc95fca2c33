"""Train one small network twice, plainly and with `encke.attach(model, optimizer)`.

    python examples/demo.py [--epochs 4] [--tolerance 0.01] [--out page.html] [--json run.json]

The network, its seed and its batches are the same in both runs, and their steps take turns.
Afterwards every kept tensor is looked at once more: how it is kept, in how many bytes, and
what its error does to the gradients, predicted and measured. Prints tables and writes the
same numbers, with charts, to a page.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import demo_checks
import demo_page
import demo_peak
import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import encke
from encke.ops.select import select
from encke.tape.protocol import Effect

BATCH = 64
CHECKED = 3  # batches over which predicted and measured errors are averaged

Digits = tuple[Tensor, Tensor, Tensor, Tensor]


def build_network() -> nn.Sequential:
    """Five convolutions with batch norm for digits of 32x32 pixels."""

    def block(inward: int, outward: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inward, outward, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outward), nn.ReLU()]

    layers = [
        *block(1, 16),
        *block(16, 16),
        nn.MaxPool2d(2),
        *block(16, 32),
        *block(32, 32),
        nn.MaxPool2d(2),
        *block(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ]
    names: dict[str, int] = {}
    network = nn.Sequential()
    for layer in layers:
        kind = {"Conv2d": "conv", "BatchNorm2d": "norm", "ReLU": "relu", "MaxPool2d": "pool"}
        stem = kind.get(type(layer).__name__, type(layer).__name__.lower())
        names[stem] = names.get(stem, 0) + 1
        network.add_module(f"{stem}{names[stem]}", layer)
    return network


def load_digits(*, limit: int | None) -> Digits:
    """scikit-learn's digits at 32x32, a fifth of them for testing."""
    from sklearn.datasets import load_digits as bundled

    digits = bundled()
    small = torch.from_numpy(digits.images).float().unsqueeze(1) / 8 - 1
    images = F.interpolate(small, size=(32, 32), mode="bilinear", align_corners=False)
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:limit]
    images, labels = images[order], labels[order]
    train = len(labels) * 4 // 5
    return images[:train], labels[:train], images[train:], labels[train:]


class Run:
    """One training from the seed on, a step at a time; with a tape if there is a tolerance."""

    def __init__(self, name: str, *, tolerance: float | None, seed: int, steps: int) -> None:
        torch.manual_seed(seed)
        self.name = name
        self.network = build_network()
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.tape: encke.Tape | None = None
        if tolerance is not None:
            self.options: dict[str, Any] = {"tolerance": tolerance}
            if _backend() != "native":  # entropy coding would take most of the step
                self.options["prefer"] = "speed"
            self.tape = encke.attach(self.network, self.optimizer, **self.options)
            self.tape.listeners.append(self._hear)
        self.losses: list[float] = []
        self.times: list[float] = []
        self.kept: list[dict[str, int]] = []
        self.checks: list[dict[str, Any]] = []

    def step(self, images: Tensor, labels: Tensor) -> None:
        started = time.perf_counter()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(images), labels)
        if self.tape is not None:
            held = {"stored": self.tape.stored_bytes, "plain": self.tape.plain_bytes}
            self.kept.append({"images": len(images), **held})
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        self.times.append(time.perf_counter() - started)

    def _hear(self, effect: Effect) -> None:
        """Note the comparisons with the true gradient that the controller makes by itself."""
        compared = demo_checks.judged(effect)
        if compared is not None:
            gradient, predicted, measured = compared
            self.checks.append(
                {
                    "step": len(self.losses) + 1,
                    "site": str(effect.site),
                    "consumer": str(effect.consumer),
                    "gradient": gradient,
                    "predicted": predicted,
                    "measured": measured,
                }
            )

    def test(self, images: Tensor, labels: Tensor) -> dict[str, float]:
        self.network.eval()
        with torch.no_grad():
            output = self.network(images)
        self.network.train()
        return {
            "accuracy": (output.argmax(dim=1) == labels).double().mean().item(),
            "test_loss": F.cross_entropy(output, labels).item(),
        }


def train(runs: list[Run], digits: Digits, *, epochs: int, seed: int) -> None:
    """Trains all runs on the same batches, in turn.

    In turn, so that whatever else the machine does slows all of them alike.
    """
    images, labels = digits[:2]
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        batches = torch.randperm(len(images), generator=generator).split(BATCH)
        for place, picked in enumerate(batches):
            for run in runs if (epoch + place) % 2 == 0 else reversed(runs):
                run.step(images[picked], labels[picked])


def measure(runs: list[Run], digits: Digits, *, epochs: int) -> dict[str, Any]:
    """What the trainings gave, and what further steps hold; those change no weights."""
    images, labels, *test = digits
    plain, attached = runs
    tape = attached.tape
    if tape is None:
        raise ValueError("the second run has no tape; give it a tolerance")
    epoch = len(plain.losses) // epochs
    measured = [
        {
            "name": run.name,
            "losses": run.losses,
            "train_loss": sum(run.losses[-epoch:]) / epoch,
            **run.test(*test),
            "step_seconds": statistics.median(run.times),
        }
        for run in runs
    ]
    ratios = [b / a for a, b in zip(plain.times, attached.times, strict=True)]
    # A copy: a slice would keep all digits alive, and count as such.
    batch = images[:BATCH].clone(), labels[:BATCH].clone()
    kept = demo_checks.kept_by_tape(tape, attached.network, batch[0])
    measured[0]["kept_bytes"] = demo_checks.kept_by_autograd(plain.network, batch[0])
    measured[1]["kept_bytes"] = kept["stored"]
    rises = demo_peak.measure(
        {
            "networks": [run.network.state_dict() for run in runs],
            "tape": tape.state_dict(),
            "options": attached.options,
            "batch": batch,
        }
    )
    for one, rise in zip(measured, rises, strict=True):
        one["peak_bytes"] = rise
    starts = range(0, min(CHECKED * BATCH, len(images) - BATCH + 1), BATCH)
    batches = [(images[i : i + BATCH], labels[i : i + BATCH]) for i in starts]
    return {
        "runs": measured,
        "time": {
            "median_ratio": statistics.median(ratios),
            "total_ratio": sum(attached.times) / sum(plain.times),
        },
        "kept": kept,
        "training": {"kept": attached.kept, "checks": list(attached.checks)},
        "gradients": demo_checks.compare_gradients(tape, attached.network, batches),
    }


def show(record: dict[str, Any], console: Console) -> None:
    """The tables, from the same record as the page."""
    for title, (columns, rows), wrapped in (
        ("The same training, twice", demo_page.comparison(record), None),
        (
            "Kept for backward; adds: to the gradients' variance",
            demo_page.kept_tensors(record),
            6,
        ),
        ("Error of the gradients, relative variance", demo_page.gradient_errors(record), 1),
    ):
        table = Table(title=title, box=box.SIMPLE_HEAD)
        for place, column in enumerate(columns):
            left = place == 0 or place == wrapped
            table.add_column(
                column,
                justify="left" if left else "right",
                no_wrap=place != wrapped,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(cell.removesuffix(" of the gradients' variance") for cell in row))
        console.print(table)
    for line in demo_page.findings(record):
        console.print(line, highlight=False)


class Notes(logging.Handler):
    """Keeps what the library logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--tolerance", type=float, default=0.01, help="variance that gradients may gain"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="use only so many digits")
    parser.add_argument("--out", type=Path, default=Path("report.html"))
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    digits = load_digits(limit=options.limit)
    if options.epochs < 1 or len(digits[0]) < BATCH:
        parser.error(
            f"{options.epochs} epochs over {len(digits[0])} digits: take at least one epoch "
            f"and {math.ceil(BATCH * 5 / 4)} digits"
        )
    console, notes = Console(), Notes()
    logging.getLogger("encke").addHandler(notes)
    if _backend() != "native":
        console.print("The native backend is not built: compression runs slowly, in torch.")
    steps = options.epochs * math.ceil(len(digits[0]) / BATCH)
    runs = [
        Run(name, tolerance=tolerance, seed=options.seed, steps=steps)
        for name, tolerance in (("plain", None), ("Encke", options.tolerance))
    ]
    console.print(f"Training on {len(digits[0])} digits, {options.epochs} epochs, two runs …")
    train(runs, digits, epochs=options.epochs, seed=options.seed)
    record = {
        "settings": {
            "tolerance": options.tolerance,
            "backend": _backend(),
            "epochs": options.epochs,
            "seed": options.seed,
            "batch": BATCH,
            "train": len(digits[0]),
            "test": len(digits[2]),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
        "notes": list(notes.lines),
        **measure(runs, digits, epochs=options.epochs),
    }
    show(record, console)
    options.out.write_text(demo_page.render(record), encoding="utf-8")
    console.print(f"The same numbers, with charts: {options.out}")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1), encoding="utf-8")


def _backend() -> str:
    return select(torch.device("cpu")).name


if __name__ == "__main__":
    main()
