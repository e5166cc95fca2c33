"""Training inside torch.compile (Inductor): benchmarks/results/tape_compiled.csv.

    ENCKE_DATA=... python benchmarks/tape/compiled.py --models resnet_cifar gpt

Each network has a process of its own, in which every way trains a copy of it on the same
batches, timed in turn with the compiled network without a tape. Rows that are there are left
out, unless `--again`.

ways        compiled, compiled with torch's own `activation_memory_budget`, compiled with a
            tape (lossless, one bound for all, the controller), and the network that is not
            compiled, without and with a tape. All are compiled with `fullgraph=True`
stored      held for backward at the end of forward; `plain` is what the graph that is compiled
            without a tape keeps (for the ways that compile nothing: what autograd keeps)
peak        resident memory of three steps above what it was before, after warm-up, gradients
            included, which `zero_grad` lets go after each; the curve of one step is in
            tape_compiled_curve.csv
first       seconds of the first forward and backward pass: compiling, unless a way before it
            had the same graph; kernels that an earlier process compiled are on disk
relative    time of a step over that of a compiled step without a tape, the two in turn, the
            median of pairs; `observed` time and peak of a step that the controller observes
difference  of the gradients after warm-up to those of the compiled network without a tape, of
            the same network not compiled, and of that with a tape under the same bound:
            ‖Δ‖²/‖g‖², the mean over weights of two or more dimensions; 0 is equality of
            every bit
graphs      compiled graphs that keep their tensors through the tape
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
    "first_seconds",
    "step_seconds",
    "relative_time",
    "observed_relative_time",
    "observed_peak_bytes",
    "difference",
    "difference_to_eager",
    "difference_to_eager_tape",
    "graphs",
    "data",
)
#: The network of the zoo, its options, and the batch.
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "resnet_cifar": ("resnet_cifar", {}, 128),
    "resnet_cifar, depth 8": ("resnet_cifar", {"depth": 8}, 128),
    "resnet18": ("resnet18", {}, 16),
    "resnet50": ("resnet50", {}, 8),
    "resnet50, channels last": ("resnet50", {}, 8),
    "gpt": ("gpt", {}, 8),
    "gpt, 2 layers": ("gpt", {"n_layer": 2}, 8),
    "gpt, 2 layers of 192": ("gpt", {"n_layer": 2, "n_embd": 192, "n_head": 3}, 8),
}
BUDGETS = {f"compiled, budget {share:g}": share for share in (0.5, 0.2, 0.0)}
WAYS = (
    "compiled",
    "compiled tape, lossless",
    "compiled tape, 5% of range",
    "compiled tape",
    "eager",
    "eager tape, lossless",
    "eager tape, 5% of range",
    "eager tape",
    *BUDGETS,
)
#: The ways with a controller, which observes a step now and then.
LEARNING = ("compiled tape", "eager tape")
_WARM = 9  # steps, of which the controller observes 1, 2, 4 and 8
_OBSERVED = 3
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
        self.net.zero_grad()
        return found

    def step(self, batch: Any) -> float:
        begun = time.perf_counter()
        self._model.loss_of(self.run, batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begun


class Bench:
    """A network, its batches, and copies of it in training, each way's from the same weights.

    Tapes are attached before anything is compiled: attach has what was compiled compiled
    again. The ways with a tape share one compiled network: a policy is not in the graph.
    """

    def __init__(self, name: str) -> None:
        import torch

        import encke
        from encke.study import zoo
        from memory import feed

        self.kind, options, self.batch = MODELS[name]
        torch.manual_seed(0)
        self.model = zoo.model(self.kind, **options)
        self.batches, self.data = feed(self.model, self.kind, self.batch)
        self._start = self.model.build(seed=0)
        if name.endswith("channels last"):
            self._start.to(memory_format=torch.channels_last)
        self.taped = {form: self.loop(form == "compiled") for form in ("compiled", "eager")}
        for loop in self.taped.values():
            loop.tape = encke.attach(loop.run)
        self.plain, self.eager = self.loop(True), self.loop(False)

    def loop(self, compiled: bool, budget: float | None = None) -> Loop:
        import torch

        net = copy.deepcopy(self._start)
        run: Any = net
        if compiled:
            run = torch.compile(net, backend=_backend(budget), fullgraph=True)
        return Loop(self.model, self.kind, net, run)

    def loop_for(self, way: str) -> Loop:
        """The loop of a way, from the beginning."""
        form, _, kept = way.partition(" ")
        if not kept.startswith("tape"):
            return self.loop(form.startswith("compiled"), BUDGETS.get(way))
        loop = self.taped[form]
        loop.net.load_state_dict(self._start.state_dict())
        loop.optimizer = _optimizer(self.kind, loop.net)
        loop.tape.policy = _policy(way, loop)
        loop.tape.step = 0
        return loop


def measure(name: str, ways: list[str], steps: int) -> Iterator[dict[str, Any]]:
    """A row and the curve of one step for each way, measured in this process."""
    import torch

    from encke.tape.peak import Peak, return_at_once
    from memory import median, settled_allocator

    bench = Bench(name)
    batches, plain = bench.batches, bench.plain
    plain.gradients(batches[0])
    for way in ways:
        mine = bench.loop_for(way)
        tape = mine.tape
        row: dict[str, Any] = {"model": name, "way": way, "batch": bench.batch}
        row |= {"threads": torch.get_num_threads(), "data": bench.data}
        begun = time.perf_counter()
        mine.gradients(batches[0])
        row["first_seconds"] = time.perf_counter() - begun
        for number in range(1, _WARM):
            mine.step(batches[number % len(batches)])
        row |= _differences(bench, way, mine)
        if tape is not None:
            tape.ledger.reset_peak()
        with Peak() as peak:
            for number in range(3):
                mine.step(batches[number])
        row["peak_bytes"] = peak.bytes
        if tape is not None:
            row["plain_bytes"] = tape.ledger.plain_peak
            row["stored_bytes"] = tape.ledger.stored_peak
            row["graphs"] = len(tape.graphs)
        else:
            row["plain_bytes"], row["stored_bytes"] = _held(bench, mine)
        if row["stored_bytes"]:  # a budget of 0 keeps nothing but the inputs
            row["ratio"] = row["plain_bytes"] / row["stored_bytes"]
        with Peak(every=0.001) as curve:
            mine.step(batches[3])
        if way in LEARNING:
            with Peak() as observed_peak:
                _observed(mine, batches[3])
            row["observed_peak_bytes"] = observed_peak.bytes
        settled_allocator()
        pairs = [
            (mine.step(given), plain.step(given))
            for given in (batches[number % len(batches)] for number in range(steps + 1))
        ][1:]
        row["step_seconds"] = median([a for a, _ in pairs])
        row["relative_time"] = median([a / b for a, b in pairs])
        if way in LEARNING:
            observed = [_observed(mine, batches[number]) for number in range(_OBSERVED)]
            row["observed_relative_time"] = median(observed) / median([b for _, b in pairs])
        return_at_once()
        yield {"row": row, "curve": curve.curve}


def _differences(bench: Bench, way: str, mine: Loop) -> dict[str, float]:
    """How far gradients of the network as it is now are from those of other ways."""
    weights, batch = copy.deepcopy(mine.net.state_dict()), bench.batches[0]
    found = mine.gradients(batch)

    def apart(other: Loop) -> float:
        other.net.load_state_dict(weights)
        return difference(found, other.gradients(batch))

    result = {"difference": apart(bench.plain), "difference_to_eager": apart(bench.eager)}
    if way.startswith("compiled tape,"):  # one bound for all needs no learning
        eager = bench.loop_for(way.replace("compiled", "eager"))
        result["difference_to_eager_tape"] = apart(eager)
    return result


def _held(bench: Bench, mine: Loop) -> tuple[int, int]:
    """Bytes that are held for backward without a tape: plainly, and in this way."""
    if mine.run is mine.net:
        from memory import held

        count = held(bench.model, mine.net, bench.batches[0], contextlib.nullcontext, ())
        return count, count
    return _kept_by_graph(bench, bench.plain), _kept_by_graph(bench, mine)


def _kept_by_graph(bench: Bench, loop: Loop) -> int:
    """Bytes of the storages that a compiled forward keeps, without parameters and inputs."""
    batch = bench.batches[0]
    loss = bench.model.loss_of(loop.run, batch)
    there = {t.untyped_storage()._cdata for t in (*loop.net.parameters(), *loop.net.buffers())}
    there |= {t.untyped_storage()._cdata for t in batch.inputs}
    node: Any = loss.grad_fn
    found: dict[int, int] = {}
    while node is not None and "CompiledFunction" not in type(node).__name__:
        node = node.next_functions[0][0]
    for t in node.saved_tensors:
        storage = t.untyped_storage()
        if storage._cdata not in there:
            found[storage._cdata] = storage.nbytes()
    return sum(found.values())


def _observed(loop: Loop, batch: Any) -> float:
    """Seconds of a step that the controller observes: told that the time has come."""
    policy = loop.tape.policy
    policy.load_state_dict(policy.state_dict() | {"next": 0})
    seconds = loop.step(batch)
    assert policy.state_dict()["effects"]
    return seconds


def _policy(way: str, loop: Loop) -> Any:
    import encke
    from encke.control.adaptive import Adaptive

    if way.endswith("lossless"):
        return encke.Fixed(encke.Lossless())
    if way.endswith("range"):
        return encke.Fixed(encke.RangeRelative(0.05), codec="entropy")
    return Adaptive(optimizers=[loop.optimizer], model=loop.net)


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
    parser.add_argument("--again", action="store_true", help="measure rows that are there anew")
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
        key = {"model": model, "batch": MODELS[model][2]}
        ways = [way for way in args.ways if args.again or not rows.has(way=way, **key)]
        if not ways:
            continue
        command = [sys.executable, __file__, "--one", "--models", model]
        command += ["--steps", str(args.steps), "--ways", *ways]
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
