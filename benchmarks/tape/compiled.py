"""Training inside torch.compile (Inductor): benchmarks/results/tape_compiled.csv.

    ENCKE_DATA=... python benchmarks/tape/compiled.py --models resnet_cifar gpt

Each way runs in a process of its own, on the same network, weights and batches.

ways        compiled, compiled with torch's own `activation_memory_budget`, compiled with a
            tape (lossless, one bound for all, the controller), and the tape without compiling
stored      held for backward at the end of forward; `plain` is what the graph that is compiled
            without a tape keeps (for the ways that compile nothing: what autograd keeps)
peak        resident memory of three steps above what it was before, after warm-up; the curve of
            one step is in tape_compiled_curve.csv
relative    time of a step over that of a compiled step without a tape, interleaved in the same
            process, the median of pairs; `observed` the same for a step that the controller
            observes
difference  of the first step's gradients to those of the compiled network without a tape, and
            to those of the network that is not compiled: ‖Δ‖²/‖g‖², the mean over weights of
            two or more dimensions; 0 is equality of every bit
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

COLUMNS = (
    "model",
    "way",
    "batch",
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
    "recompilations",
    "data",
)
BATCHES = {"resnet_cifar": 128, "resnet18": 16, "gpt": 8}
BUDGETS = {"compiled, budget 0.5": 0.5, "compiled, budget 0": 0.0}
TAPES = ("compiled tape, lossless", "compiled tape, 5% of range", "compiled tape")
WAYS = ("compiled", *BUDGETS, *TAPES, "eager", "eager tape")
_ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}


def one(name: str, way: str, batch: int, steps: int) -> tuple[dict[str, Any], list[Any]]:
    """A row and the curve of one step, measured in this process."""
    import torch
    from memory import feed, median
    from torch._dynamo.utils import counters

    import encke
    from encke.study import zoo
    from encke.tape.peak import Peak

    torch.manual_seed(0)
    model = zoo.model(name)
    batches, kind = feed(model, name, batch)
    net = model.build(seed=0)
    plain_net, eager_net = copy.deepcopy(net), copy.deepcopy(net)
    optimizer = _optimizer(name, net)
    run: Any = net
    if way.startswith("compiled"):
        run = torch.compile(net, backend=_backend(BUDGETS.get(way)), fullgraph=True)
    tape: encke.Tape | None = None
    if way == "compiled tape, lossless":
        tape = encke.attach(run, policy=encke.Fixed(encke.Lossless()))
    elif way == "compiled tape, 5% of range":
        policy = encke.Fixed(encke.RangeRelative(0.05), codec="entropy")
        tape = encke.attach(run, policy=policy)
    elif way.endswith("tape"):
        tape = encke.attach(run, optimizer)
    mine = Loop(model, net, run)
    plain = Loop(model, plain_net, torch.compile(plain_net, fullgraph=True))
    reference = plain.gradients(batches[0])
    eager = Loop(model, eager_net, None).gradients(batches[0])
    del eager_net
    found = mine.gradients(batches[0])
    row: dict[str, Any] = {
        "model": name,
        "way": way,
        "batch": batch,
        "threads": torch.get_num_threads(),
        "data": kind,
        "difference": difference(found, reference),
        "difference_to_eager": difference(found, eager),
    }
    before = counters["stats"]["unique_graphs"]
    observed = []
    for number in range(1, 10):  # the controller observes steps 2, 4 and 8 of these
        seconds = mine.step(batches[number % len(batches)], optimizer)
        if number in (3, 7):  # steps 4 and 8 of the tape
            observed.append(seconds)
    if tape is not None:
        tape.ledger.reset_peak()
    with Peak() as peak:
        for number in range(3):
            mine.step(batches[number], optimizer)
    row["peak_bytes"] = peak.bytes
    if tape is not None:
        row["plain_bytes"] = tape.ledger.plain_peak
        row["stored_bytes"] = tape.ledger.stored_peak
        row["ratio"] = tape.ledger.plain_peak / tape.ledger.stored_peak
        row["graphs"] = len(tape.graphs)
    with Peak(every=0.001) as curve:
        mine.step(batches[3], optimizer)
    other = _optimizer(name, plain_net)
    pairs = []
    for number in range(steps):
        data = batches[number % len(batches)]
        pairs.append((mine.step(data, optimizer), plain.step(data, other)))
    row["step_seconds"] = median([a for a, _ in pairs])
    row["relative_time"] = median([a / b for a, b in pairs])
    if tape is not None and "lossless" not in way and "%" not in way:
        row["observed_relative_time"] = min(observed) / median([b for _, b in pairs])
    row["recompilations"] = counters["stats"]["unique_graphs"] - before
    return row, curve.curve


class Loop:
    """A network and how it is called."""

    def __init__(self, model: Any, net: Any, run: Any) -> None:
        self._model, self._net = model, net
        self._run = net if run is None else run

    def gradients(self, batch: Any) -> dict[str, Any]:
        self._net.zero_grad()
        self._model.loss_of(self._run, batch).backward()
        found = {
            n: p.grad.detach().clone() for n, p in self._net.named_parameters() if p.ndim > 1
        }
        self._net.zero_grad(set_to_none=False)
        return found

    def step(self, batch: Any, optimizer: Any) -> float:
        begun = time.perf_counter()
        self._model.loss_of(self._run, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return time.perf_counter() - begun


def _backend(budget: float | None) -> Any:
    """Inductor, told how much of the activations it may keep (a share of all)."""
    if budget is None:
        return "inductor"
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    def within_budget(gm: Any, inputs: Any) -> Any:
        with config.patch(activation_memory_budget=budget):
            return compile_fx(gm, inputs)

    return within_budget


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
    parser.add_argument("--models", nargs="+", default=["resnet_cifar", "gpt"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, default=7, help="pairs of timed steps")
    parser.add_argument("--one", action="store_true", help="run in this process, print JSON")
    parser.add_argument("--again", action="store_true", help="measure rows that are there anew")
    args = parser.parse_args()
    if args.one:
        row, curve = one(args.models[0], args.ways[0], args.batch, args.steps)
        print(json.dumps({"row": row, "curve": curve}))
        return
    key = ("model", "way", "batch")
    rows = Rows("tape_compiled.csv", COLUMNS, key)
    curves = Rows(
        "tape_compiled_curve.csv", (*key, "point", "seconds", "bytes"), (*key, "point")
    )
    for model in args.models:
        batch = args.batch or BATCHES[model]
        for way in args.ways:
            if rows.has(model=model, way=way, batch=batch) and not args.again:
                continue
            command = [sys.executable, __file__, "--one", "--models", model, "--ways", way]
            command += ["--batch", str(batch), "--steps", str(args.steps)]
            done = subprocess.run(
                command, env=os.environ | _ALLOCATOR, capture_output=True, text=True
            )
            if done.returncode:
                print(f"{model:13} {way:28} failed: {done.stderr.strip().splitlines()[-1]}")
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            row, curve = found["row"], found["curve"]
            rows.put(**row)
            for point, (seconds, count) in enumerate(_thinned(curve)):
                curves.put(
                    model=model, way=way, batch=batch, point=point, seconds=seconds, bytes=count
                )
            print(
                f"{model:13} {way:28} ratio {row.get('ratio') or 1:5.1f}  "
                f"peak {row['peak_bytes'] / 1e6:6.0f} MB  relative {row['relative_time']:.2f}  "
                f"difference {row['difference']:.1e}",
                flush=True,
            )


def _thinned(curve: list[Any], points: int = 80) -> list[Any]:
    """The largest of each of so many stretches of a curve: no peak is lost."""
    if len(curve) <= points:
        return curve
    width = len(curve) / points
    stretches = (curve[int(i * width) : int((i + 1) * width)] for i in range(points))
    return [max(stretch, key=lambda pair: pair[1]) for stretch in stretches]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
