"""Train one small network twice, plainly and with every kept activation compressed.

    python examples/demo.py [--epochs 6] [--bound 0.1] [--out report.html] [--json run.json]

The network, its seed and its batches are the same in both runs. In the second, what
autograd keeps for backward goes through `encke.compress` on its way in and through
`encke.decompress` on its way out. The bound is one fixed number for all layers: nothing
here adapts it. Prints a table and writes the same numbers, with charts, to a page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own start and stop notes

import demo_page
import torch
import torch.nn.functional as F
from demo_hooks import ActivationCompressor
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import encke
from encke.ops.select import select

BATCH = 64


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


def load_digits(*, limit: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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


def allocated_at_peak(step: Any) -> int:
    """The most bytes that `step` had allocated at one time, from torch's profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    held = peak = 0
    mine: set[int] = set()
    for event in sorted(
        (e for e in events if e.get("name") == "[memory]"), key=lambda e: e["args"]["Ev Idx"]
    ):
        size, address = event["args"]["Bytes"], event["args"]["Addr"]
        if size > 0:
            mine.add(address)
        elif address not in mine:
            continue  # allocated before the step
        held += size
        peak = max(peak, held)
    return peak


class Run:
    """One training from the seed on, a step at a time."""

    def __init__(
        self, name: str, *, bound: encke.Bound | None, codec: str, seed: int, steps: int
    ) -> None:
        torch.manual_seed(seed)
        self.name = name
        self.network = build_network()
        self.compressed = bound is not None
        self.compressor = ActivationCompressor(self.network, bound=bound, codec=codec)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.losses: list[float] = []
        self.times: list[float] = []

    def step(self, images: Tensor, labels: Tensor) -> None:
        started = time.perf_counter()
        self.compressor.start_step()
        self.losses.append(self._update(images, labels, hooked=self.compressed))
        self.schedule.step()
        self.times.append(time.perf_counter() - started)

    def _update(self, images: Tensor, labels: Tensor, *, hooked: bool) -> float:
        self.optimizer.zero_grad()
        with self.compressor.hooks() if hooked else contextlib.nullcontext():
            loss = F.cross_entropy(self.network(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        self.network.eval()
        with torch.no_grad():
            right = (self.network(images).argmax(dim=1) == labels).sum().item()
        self.network.train()
        return right / len(labels)

    def measure(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """What two further steps hold; after the training, so that looking costs it nothing."""
        peak = allocated_at_peak(lambda: self._update(images, labels, hooked=self.compressed))
        self.compressor.start_step(recording=True)
        self._update(images, labels, hooked=True)
        seen = self.compressor
        return {
            "held_bytes": sum(seen.stored.values()),
            "uncompressed_bytes": sum(seen.plain.values()),
            "peak_bytes": peak,
            "layers": [
                {"name": layer, "plain": seen.plain[layer], "stored": stored}
                for layer, stored in seen.stored.items()
            ],
            "error_histogram": seen.histogram.tolist(),
            "largest_error_over_bound": seen.largest,
        }


def train(
    runs: list[Run], digits: tuple[Tensor, Tensor, Tensor, Tensor], *, epochs: int, seed: int
) -> list[dict[str, Any]]:
    """Trains all runs on the same batches, in turn, and gives what each measured.

    In turn, so that whatever else the machine does slows all of them alike.
    """
    images, labels, test_images, test_labels = digits
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for picked in torch.randperm(len(images), generator=generator).split(BATCH):
            for run in runs:
                run.step(images[picked], labels[picked])
    return [
        {
            "name": run.name,
            "accuracy": run.accuracy(test_images, test_labels),
            "losses": run.losses,
            "step_seconds": sorted(run.times)[len(run.times) // 2],
            **run.measure(images[:BATCH], labels[:BATCH]),
        }
        for run in runs
    ]


def show(record: dict[str, Any], console: Console) -> None:
    """The table, from the same record as the page."""
    columns, rows = demo_page.table(record)
    table = Table(title="The same training, twice")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--bound", type=float, default=0.1, help="of each activation's range")
    parser.add_argument("--codec", choices=("entropy", "fixed"), help="default: entropy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="use only so many digits")
    parser.add_argument("--out", type=Path, default=Path("report.html"))
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    console = Console()
    backend = select(torch.device("cpu")).name
    codec = options.codec or ("entropy" if backend == "native" else "fixed")
    if backend != "native":
        console.print(f"The native backend is not built: {codec!r} runs slowly, in torch.")
    digits = load_digits(limit=options.limit)
    steps = options.epochs * math.ceil(len(digits[0]) / BATCH)
    runs = [
        Run(name, bound=bound, codec=codec, seed=options.seed, steps=steps)
        for name, bound in (("plain", None), ("Encke", encke.RangeRelative(options.bound)))
    ]
    console.print(f"Training on {len(digits[0])} digits, {options.epochs} epochs, two runs …")
    measured = train(runs, digits, epochs=options.epochs, seed=options.seed)
    record = {
        "settings": {
            "bound": options.bound,
            "codec": codec,
            "backend": backend,
            "epochs": options.epochs,
            "seed": options.seed,
            "train": len(digits[0]),
            "test": len(digits[2]),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
        "runs": measured,
    }
    show(record, console)
    options.out.write_text(demo_page.render(record), encoding="utf-8")
    console.print(f"The same numbers, with charts: {options.out}")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
