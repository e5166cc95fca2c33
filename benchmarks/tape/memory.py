"""Memory and time of a training step, way by way: benchmarks/results/tape_memory.csv.

    python benchmarks/tape/memory.py --models resnet50 vgg16 --ways plain Encke --batch 48

Each way runs in a process of its own. `stored` is what is held for backward at the end of
forward after warm-up, `plain` the unique storages that plain autograd would hold, `peak` the
process's resident memory above what it was with weights, gradients and optimizer state in
place. Step times are taken interleaved with plain steps of the same network in the same
process, so their quotient stands on a busy machine too. While memory is measured every large
block is given back to the system at once, which costs time; for the timing the allocator is as
it settles by itself.

With ENCKE_DATA set, image models see CIFAR-10 resized to their input and GPT sees Shakespeare:
gradients of random labels are nothing but noise, and the error that they bear is not that of
training. Otherwise data are synthetic, of real shape; the column `data` says which.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

COLUMNS = (
    "model",
    "way",
    "batch",
    "threads",
    "steps",
    "plain_bytes",
    "stored_bytes",
    "ratio",
    "peak_bytes",
    "step_seconds",
    "plain_step_seconds",
    "relative_time",
    "loss",
    "data",
)
BATCHES = {
    "alexnet": 32,
    "vgg16": 8,
    "resnet18": 16,
    "resnet50": 8,
    "resnet_cifar": 128,
    "gpt": 8,
    "vit_tiny": 16,
    "gcn": 1,
}
_ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}


def one(
    name: str, way: str, batch: int, warm: int, steps: int, timed: bool, channels_last: bool
) -> dict[str, object]:
    """A row, measured in this process."""
    import torch
    from ways import WAYS

    from encke.study import zoo
    from encke.tape.peak import Peak

    torch.manual_seed(0)
    model = zoo.model(name)
    net = model.build(seed=0)
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(net.parameters(), lr=1e-4)
        if name in ("gpt", "vit_tiny", "gcn")
        else torch.optim.SGD(net.parameters(), lr=0.002, momentum=0.9)
    )
    batches, kind = feed(model, name, batch)
    small = model.sample_batch(2, seed=9)

    def step(data: object, around: object) -> float:
        begun = time.perf_counter()
        with around():  # type: ignore[operator]
            loss = model.loss_of(net, data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(float(loss.detach()))
        return time.perf_counter() - begun

    losses: list[float] = []
    import contextlib

    step(small, contextlib.nullcontext)  # gradients and optimizer state are there from here on
    row: dict[str, object] = {"way": way, "batch": batch, "data": kind}
    row["model"] = named(name, channels_last)
    fitted = WAYS[way].fit(net, optimizer)
    if fitted.tape is None:
        row["plain_bytes"], row["stored_bytes"] = (
            held(model, net, batches[0], around, stretches)
            for around, stretches in (
                (fitted.plain, ()),
                (fitted.around, fitted.stretches),
            )
        )
        row["ratio"] = row["plain_bytes"] / row["stored_bytes"]  # type: ignore[operator]
    for i in range(warm):
        step(batches[i % len(batches)], fitted.around)
    tape = fitted.tape
    if tape is not None:
        tape.ledger.reset_peak()
    with Peak() as peak:
        times = [step(batches[i % len(batches)], fitted.around) for i in range(steps)]
    row["peak_bytes"] = peak.bytes
    if tape is not None:
        row["plain_bytes"] = tape.ledger.plain_peak
        row["stored_bytes"] = tape.ledger.stored_peak
        row["ratio"] = tape.ledger.plain_peak / tape.ledger.stored_peak
    row["loss"] = losses[-1]
    if timed and way != "plain":
        settled_allocator()
        step(batches[0], fitted.around)
        plain, mine = [], []
        for i in range(steps):
            mine.append(step(batches[i % len(batches)], fitted.around))
            with fitted.plain():
                plain.append(step(batches[i % len(batches)], contextlib.nullcontext))
        row["step_seconds"], row["plain_step_seconds"] = median(mine), median(plain)
        row["relative_time"] = median([a / b for a, b in zip(mine, plain, strict=True)])
    else:
        row["step_seconds"] = median(times)
    row["threads"], row["steps"] = torch.get_num_threads(), steps
    return row


def named(model: str, channels_last: bool) -> str:
    """A row's model: channels-last weights spare oneDNN its reordered copies."""
    return f"{model}, channels last" if channels_last else model


def settled_allocator() -> None:
    """glibc's limits where its own adaptation ends: blocks below 32 MiB are used again."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD
    libc.mallopt(-1, 64 << 20)  # M_TRIM_THRESHOLD


def held(model: object, net: object, batch: object, around: object, stretches: object) -> int:
    """The most bytes that a step of a way without a tape holds for backward."""
    from encke.study.measure.holding import Holding

    holding = Holding(net)  # type: ignore[arg-type]
    with holding.within(stretches):  # type: ignore[arg-type]
        with around(), holding.watch():  # type: ignore[operator]
            loss = model.loss_of(net, batch)  # type: ignore[attr-defined]
        loss.backward()
    for parameter in net.parameters():  # type: ignore[attr-defined]
        parameter.grad.zero_()
    return holding.peak


def feed(model: object, name: str, batch: int) -> tuple[list[object], str]:
    """Sixteen batches for a model, of real data where there are some."""
    import torch

    from encke.study import data, zoo

    count, root = 16, os.environ.get("ENCKE_DATA")
    shape = model.sample_input(1)[0].shape  # type: ignore[attr-defined]
    if not root or name == "gcn":
        count = 4
        found = [model.sample_batch(batch, seed=i) for i in range(count)]  # type: ignore[attr-defined]
        return found, "synthetic"
    if name == "gpt":
        text = data.load("text", file=f"{root}/tinyshakespeare.txt", block_size=shape[1])
        source = text.batches("train", batch, 0, augment=True, drop_last=True)
        found = [zoo.Batch(*pair) for pair in itertools.islice(source, count)]
        return found, "shakespeare"
    images = data.load("cifar10").head(train=count * batch, test=1)
    found = []
    for (x,), target in images.batches("train", batch, 0, augment=False, drop_last=True):
        large = torch.nn.functional.interpolate(x, size=shape[-2:], mode="bilinear")
        found.append(zoo.Batch((large,), target))
    return found, "cifar10"


def median(numbers: list[float]) -> float:
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def main() -> None:
    from rows import Rows

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(BATCHES))
    parser.add_argument("--ways", nargs="+", default=None)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--warm", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--untimed", action="store_true", help="leave out interleaved timing")
    parser.add_argument("--channels-last", action="store_true", help="weights in that format")
    parser.add_argument("--one", action="store_true", help="run in this process, print JSON")
    parser.add_argument("--again", action="store_true", help="measure rows that are there anew")
    args = parser.parse_args()
    if args.one:
        row = one(
            args.models[0],
            args.ways[0],
            args.batch,
            args.warm,
            args.steps,
            not args.untimed,
            args.channels_last,
        )
        print(json.dumps(row))
        return
    from ways import WAYS

    rows = Rows("tape_memory.csv", COLUMNS, ("model", "way", "batch"))
    for model in args.models:
        batch = args.batch or BATCHES[model]
        for way in args.ways or list(WAYS):
            if not args.again and rows.has(
                model=named(model, args.channels_last), way=way, batch=batch
            ):
                continue
            command = [sys.executable, __file__, "--one", "--models", model, "--ways", way]
            command += ["--batch", str(batch), "--warm", str(args.warm)]
            command += ["--steps", str(args.steps)] + ["--untimed"] * args.untimed
            command += ["--channels-last"] * args.channels_last
            done = subprocess.run(
                command, env=os.environ | _ALLOCATOR, capture_output=True, text=True
            )
            if done.returncode:
                print(f"{model:13} {way:24} failed: {done.stderr.strip().splitlines()[-1]}")
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            rows.put(**row)
            print(
                f"{model:13} {way:24} batch {batch:4}  ratio {row.get('ratio') or 1:6.1f}  "
                f"peak {row['peak_bytes'] / 1e6:8.0f} MB  step {row['step_seconds']:.2f} s  "
                f"relative {row.get('relative_time') or float('nan'):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
