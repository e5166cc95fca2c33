"""Peak and time of a language model's head, forward and backward, in four ways.

    python benchmarks/head.py            # writes benchmarks/results/head.csv
    python benchmarks/head.py --quick    # one small size, prints only

stock     F.linear and F.cross_entropy
function  encke.linear_cross_entropy
lazy      the stock code inside `LazyHead`: logits are not made
logits    the stock code inside `LazyHead`, with logits that were looked at before the loss

The peak is the highest resident memory above that before the pass, in a fresh process for each
way. Times are the least of several rounds, in which the ways take turns in one process; with
others on the machine, processor seconds say more than seconds.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import encke
from encke.head.lazy import LazyHead

RESULTS = Path(__file__).parent / "results" / "head.csv"
SIZES = [(n, d, v) for n in (512, 2048) for d in (256, 768) for v in (32000, 50257)]
ROUNDS = 3


def stock(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), target)


def function(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return encke.linear_cross_entropy(hidden, weight, target)


def lazy(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    with LazyHead():
        return F.cross_entropy(F.linear(hidden, weight), target)


def logits(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    found = F.linear(hidden, weight)
    with LazyHead():
        return F.cross_entropy(found, target)


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "stock": stock,
    "function": function,
    "lazy": lazy,
    "logits": logits,
}


def inputs(rows: int, features: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(rows, features, requires_grad=True)
    weight = (0.05 * torch.randn(classes, features)).requires_grad_()
    return hidden, weight, torch.randint(0, classes, (rows,))


def run(way: str, hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[float, float]:
    """Seconds and processor seconds of a forward and a backward pass."""
    hidden.grad = weight.grad = None
    began, began_processor = time.perf_counter(), time.process_time()
    WAYS[way](hidden, weight, target).backward()
    return time.perf_counter() - began, time.process_time() - began_processor


def resident(field: str) -> int:
    """A line of /proc/self/status in bytes: VmRSS now, VmHWM at its highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def peak(way: str, size: tuple[int, int, int]) -> float:
    """MiB of resident memory that the pass adds at its highest, in this process."""
    run(way, *inputs(600, 16, 4200))  # what is loaded on first use
    given = inputs(*size)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    run(way, *given)
    return (resident("VmHWM") - before) / 2**20


def peak_in_fresh_process(way: str, size: tuple[int, int, int]) -> float:
    command = [sys.executable, __file__, "--peak", way, *map(str, size)]
    return float(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))


def differences(way: str, size: tuple[int, int, int]) -> tuple[float, float]:
    """Of loss and of the weight's gradient to stock's, relative."""
    hidden, weight, target = inputs(*size)
    found = []
    for name in (way, "stock"):
        weight.grad = hidden.grad = None
        loss = WAYS[name](hidden, weight, target)
        loss.backward()
        found.append((loss.item(), weight.grad))
    (loss, gradient), (expected, truth) = found
    error = float((gradient - truth).norm() / truth.norm())
    return abs(loss - expected) / expected, error


def measure(size: tuple[int, int, int], rounds: int) -> list[dict[str, object]]:
    given = inputs(*size)
    best: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        for way in WAYS:
            times = run(way, *given)
            best[way] = (
                tuple(map(min, times, best[way])) if way in best else times  # type: ignore[assignment]
            )
    rows: list[dict[str, object]] = []
    for way in WAYS:
        loss, gradient = differences(way, size)
        rows.append(
            {
                "rows": size[0],
                "features": size[1],
                "classes": size[2],
                "way": way,
                "logits_mib": f"{size[0] * size[2] * 4 / 2**20:.1f}",
                "peak_mib": f"{peak_in_fresh_process(way, size):.1f}",
                "seconds": f"{best[way][0]:.3f}",
                "processor_seconds": f"{best[way][1]:.3f}",
                "processor_seconds_of_stock": f"{best[way][1] / best['stock'][1]:.3f}",
                "loss_difference": f"{loss:.1e}",
                "gradient_difference": f"{gradient:.1e}",
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }
        )
        print(*rows[-1].values(), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small size, no file")
    parser.add_argument("--peak", nargs=4, metavar=("WAY", "N", "D", "V"), help="one number")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        way, *size = options.peak
        print(peak(way, (int(size[0]), int(size[1]), int(size[2]))))
        return
    if options.quick:
        measure((512, 64, 8000), 2)
        return
    rows = [row for size in SIZES for row in measure(size, ROUNDS)]
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()
