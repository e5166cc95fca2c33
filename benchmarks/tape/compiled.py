"""Training inside torch.compile (Inductor): benchmarks/results/tape_compiled.csv.

    ENCKE_DATA=... python benchmarks/tape/compiled.py --models resnet_cifar gpt

Each network has a process of its own, in which every way trains a copy of it on the same
batches.

ways        compiled, compiled with torch's own `activation_memory_budget`, compiled with a
            tape (lossless, one bound for all, the controller), and the network that is not
            compiled, without and with a tape
stored      held for backward at the end of forward; `plain` is what the graph that is compiled
            without a tape keeps (for the ways that compile nothing: what autograd keeps)
peak        resident memory of three steps above what it was before, after warm-up; the curve of
            one step is in tape_compiled_curve.csv
relative    time of a step over that of a compiled step without a tape, the two in turn, the
            median of pairs; `observed` the same for a step that the controller observes
difference  of the first step's gradients to those of the compiled network without a tape, and
            to those of the network that is not compiled: ‖Δ‖²/‖g‖², the mean over weights of
            two or more dimensions; 0 is equality of every bit
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

KEY = ("model", "way", "batch")
COLUMNS = (
    *KEY,
    "threads",
    "plain_bytes",
    "stored_bytes",
    "ratio",
    "peak_bytes",
    "step_seconds",
    "relative_time",
    "observed_relative_time",
    "difference",
    "difference_to_eager",
    "graphs",
    "data",
)
#: The network of the zoo, its options, and the batch.
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "resnet_cifar": ("resnet_cifar", {}, 128),
    "resnet_cifar, depth 8": ("resnet_cifar", {"depth": 8}, 128),
    "resnet18": ("resnet18", {}, 16),
    "gpt": ("gpt", {}, 8),
    "gpt, 2 layers": ("gpt", {"n_layer": 2}, 8),
}
BUDGETS = {"compiled, budget 0.5": 0.5, "compiled, budget 0": 0.0}
WAYS = (
    "compiled",
    "compiled tape, lossless",
    "compiled tape, 5% of range",
    "compiled tape",
    "eager",
    "eager tape",
    *BUDGETS,
)
_ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}


class Loop:
    """A network in training, and how it is called."""

    def __init__(self, model: Any, name: str, net: Any, run: Any) -> None:
        self._model, self.net, self.run = model, net, run
        self.optimizer = _optimizer(name, net)
        self.tape: Any = None

    def gradients(self, batch: Any) -> dict[str, Any]:
        self.net.zero_grad()
        self._model.loss_of(self.run, batch).backward()
        found = {
            n: p.grad.detach().clone() for n, p in self.net.named_parameters() if p.ndim > 1
        }
        self.net.zero_grad(set_to_none=False)
        return found

    def step(self, batch: Any) -> float:
        begun = time.perf_counter()
        self._model.loss_of(self.run, batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return time.perf_counter() - begun


def measure(name: str, ways: list[str], steps: int) -> Iterator[dict[str, Any]]:
    """A row and the curve of one step for each way, measured in this process."""
    import torch
    from memory import feed, median

    import encke
    from encke.study import zoo
    from encke.tape.peak import Peak

    kind, options, batch = MODELS[name]
    torch.manual_seed(0)
    model = zoo.model(kind, **options)
    batches, data = feed(model, kind, batch)
    start = model.build(seed=0)

    def loop(*, compiled: bool, budget: float | None = None) -> Loop:
        net = copy.deepcopy(start)
        run = torch.compile(net, backend=_backend(budget), fullgraph=True) if compiled else net
        return Loop(model, kind, net, run)

    # Before anything is compiled: attach has what was compiled compiled again.
    taped, eager_taped = loop(compiled=True), loop(compiled=False)
    for one in (taped, eager_taped):
        one.tape = encke.attach(one.run, one.optimizer)
    plain = loop(compiled=True)
    reference = plain.gradients(batches[0])
    eager = loop(compiled=False).gradients(batches[0])
    for way in ways:
        if way == "compiled":
            mine = plain
        elif way.startswith("compiled tape"):
            mine = taped
            taped.net.load_state_dict(start.state_dict())
            mine.optimizer = _optimizer(kind, taped.net)
            mine.tape.policy = _policy(way, taped)
            mine.tape.step = 0
        elif way == "eager tape":
            mine = eager_taped
        else:
            mine = loop(compiled=way in BUDGETS, budget=BUDGETS.get(way))
        tape = mine.tape
        found = mine.gradients(batches[0])
        row: dict[str, Any] = {
            "model": name,
            "way": way,
            "batch": batch,
            "threads": torch.get_num_threads(),
            "data": data,
            "difference": difference(found, reference),
            "difference_to_eager": difference(found, eager),
        }
        observed = 0.0
        for number in range(2, 10):
            seconds = mine.step(batches[number % len(batches)])
            observed = seconds if number == 8 else observed  # the controller's 1, 2, 4, 8, …
        if tape is not None:
            tape.ledger.reset_peak()
        with Peak() as peak:
            for number in range(3):
                mine.step(batches[number])
        row["peak_bytes"] = peak.bytes
        if tape is not None:
            row["plain_bytes"] = tape.ledger.plain_peak
            row["stored_bytes"] = tape.ledger.stored_peak
            row["ratio"] = tape.ledger.plain_peak / tape.ledger.stored_peak
            row["graphs"] = len(tape.graphs)
        with Peak(every=0.001) as curve:
            mine.step(batches[3])
        pairs = []
        for number in range(steps):
            given = batches[number % len(batches)]
            pairs.append((mine.step(given), plain.step(given)))
        row["step_seconds"] = median([a for a, _ in pairs])
        row["relative_time"] = median([a / b for a, b in pairs])
        if way in ("compiled tape", "eager tape"):
            row["observed_relative_time"] = observed / median([b for _, b in pairs])
        yield {"row": row, "curve": curve.curve}


def _policy(way: str, loop: Loop) -> Any:
    import encke
    from encke.control.adaptive import Adaptive

    if way.endswith("lossless"):
        return encke.Fixed(encke.Lossless())
    if way.endswith("range"):
        return encke.Fixed(encke.RangeRelative(0.05), codec="entropy")
    return Adaptive(optimizers=[loop.optimizer], model=loop.net, reference="momentum")


def _backend(budget: float | None) -> Any:
    """Inductor, told how much of the activations it may keep (a share of all).

    Each is a backend of its own, so that no two networks share code.
    """
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    def inductor(gm: Any, inputs: Any) -> Any:
        with config.patch(activation_memory_budget=1.0 if budget is None else budget):
            return compile_fx(gm, inputs)

    return inductor


def _optimizer(name: str, net: Any) -> Any:
    import torch

    if name == "gpt":
        return torch.optim.AdamW(net.parameters(), lr=1e-4)
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """‖Δ‖²/‖g‖², the mean over weights."""
    found = [
        float((one[n] - other[n]).double().norm() ** 2 / other[n].double().norm() ** 2)
        for n in one
    ]
    return sum(found) / len(found)


def main() -> None:
    from rows import Rows

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["resnet_cifar", "gpt"], choices=MODELS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--steps", type=int, default=7, help="pairs of timed steps")
    parser.add_argument("--one", action="store_true", help="run in this process, print JSON")
    args = parser.parse_args()
    if args.one:
        for found in measure(args.models[0], args.ways, args.steps):
            print(json.dumps(found), flush=True)
        return
    rows = Rows("tape_compiled.csv", COLUMNS, KEY)
    curves = Rows(
        "tape_compiled_curve.csv", (*KEY, "point", "seconds", "bytes"), (*KEY, "point")
    )
    for model in args.models:
        command = [sys.executable, __file__, "--one", "--models", model]
        command += ["--steps", str(args.steps), "--ways", *args.ways]
        environment = os.environ | _ALLOCATOR
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith('{"row"'):
                    found = json.loads(line)
                    rows.put(**found["row"])
                    _put_curve(curves, found["row"], found["curve"])
                    _say(found["row"])


def _put_curve(curves: Any, row: dict[str, Any], curve: list[Any], points: int = 60) -> None:
    """The largest of each of so many stretches of a curve: no peak is lost."""
    width = max(1.0, len(curve) / points)
    for point in range(min(points, len(curve))):
        stretch = curve[int(point * width) : int((point + 1) * width)]
        seconds, count = max(stretch, key=lambda pair: pair[1])
        curves.put(**{k: row[k] for k in KEY}, point=point, seconds=seconds, bytes=count)


def _say(row: dict[str, Any]) -> None:
    print(
        f"{row['model']:22} {row['way']:28} ratio {row.get('ratio') or 1:5.1f}  "
        f"peak {row['peak_bytes'] / 1e6:6.0f} MB  relative {row['relative_time']:.2f}  "
        f"difference {row['difference']:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    main()
