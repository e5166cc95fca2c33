"""Peak memory, time and loss of whole trainings, way by way: benchmarks/results/peak.csv.

    python benchmarks/tape/peak.py                                  # every case, smaller batch
    python benchmarks/tape/peak.py --cases gpt2 --ways plain Encke --seeds 0 1 2 --larger

Every training is a process of its own in the environment as it is: no variable is set for the
allocator or for threads. `peak_mb` is the most resident memory of the whole training, first and
observed steps included, above what the process has before its first step with model, gradients
and optimizer state in place (one step of the optimizer with gradients of zero has been taken).
`typical_mb` is the median over steps of the same, `first_mb` that of the first step.
A case that has a row is passed over unless `--again` is given.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from peak_cases import CASES, LANGUAGE
from rows import Rows

COLUMNS = (
    "model", "batch", "way", "seed", "steps",
    "peak_mb", "typical_mb", "first_mb", "worst_over_typical",
    "seconds", "step_seconds", "loss",
    "stored_mb", "expected_mb", "said",
)  # fmt: skip
KEY = ("model", "batch", "way", "seed", "steps")
WAYS = (
    "plain",
    "plain, pool",
    "checkpoint",
    "checkpoint, pool, head",
    "bf16",
    "Encke",
)
EXPECTED = "Encke, advised"
WAYS = (*WAYS, EXPECTED)
STEPS = 120
_LAST = 10


def one(name: str, way: str, batch: int, seed: int, steps: int) -> dict[str, object]:
    """Train in this process and measure."""
    import torch

    torch.manual_seed(seed)
    model, optimizer, loss_of = CASES[name][0](batch)
    model.train()
    tape = None
    around = nullcontext()
    if "pool" in way:
        import encke.memory

        encke.memory.install()
    if way.startswith("checkpoint"):
        _checkpoint(model)
    if "head" in way:
        from encke.head.lazy import LazyHead

        around = LazyHead()
    if way == "bf16":
        around = torch.autocast("cpu", torch.bfloat16)
    if way == "Encke":
        import encke

        tape = encke.attach(model, optimizer)
    _prepare(optimizer)
    if way == EXPECTED:
        return _expected(name, model, loss_of, batch, seed)
    start = _resident()
    peaks, losses, times = [], [], []
    for _ in range(steps):
        Path("/proc/self/clear_refs").write_text("5")
        began = time.perf_counter()
        optimizer.zero_grad()
        with around:
            loss = loss_of()
        loss.backward()
        losses.append(loss.item())
        del loss
        optimizer.step()
        times.append(time.perf_counter() - began)
        peaks.append(_high_water() - start)
    typical = statistics.median(peaks)
    return {
        "model": name,
        "batch": batch,
        "way": way,
        "seed": seed,
        "steps": steps,
        "peak_mb": max(peaks) / 2**20,
        "typical_mb": typical / 2**20,
        "first_mb": peaks[0] / 2**20,
        "worst_over_typical": max(peaks) / typical,
        "seconds": sum(times),
        "step_seconds": statistics.median(times),
        "loss": statistics.fmean(losses[-_LAST:]),
        "stored_mb": tape.ledger.stored_peak / 2**20 if tape is not None else None,
        "said": tape.aside if tape is not None else "",
        "peaks": [round(p / 2**20, 1) for p in peaks],
    }


def _expected(name: str, model: object, loss_of: object, batch: int, seed: int) -> dict:
    """What `encke.advise` expects for the peak of a step, before any step is taken."""
    import encke

    model.zero_grad()
    began = time.perf_counter()
    advice = encke.advise(model, loss_of)
    # The other ways begin with gradients in place.
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return {
        "model": name,
        "batch": batch,
        "way": EXPECTED,
        "seed": seed,
        "seconds": time.perf_counter() - began,
        "expected_mb": (advice.expected_peak - gradients) / 2**20,
        "stored_mb": advice.stored / 2**20,
    }


def _prepare(optimizer: object) -> None:
    """Gradients and the optimizer's state are in place; weights stay as they are."""
    import torch

    assert isinstance(optimizer, torch.optim.Optimizer)
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _checkpoint(model: object) -> None:
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return
    from torch import nn

    from encke.study.recompute import recompute

    assert isinstance(model, nn.Module)
    if not recompute(model):
        raise SystemExit("nothing to checkpoint in this model")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _high_water() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("the kernel does not tell VmHWM")


def run(name: str, way: str, batch: int, seed: int, steps: int) -> dict[str, object] | None:
    """The row of a training, in a process of its own."""
    command = [sys.executable, __file__, "--one", name, way, str(batch), str(seed), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"{name}, {way}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    row: dict[str, object] = json.loads(lines[-1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--larger", action="store_true", help="the larger batch sizes")
    parser.add_argument("--again", action="store_true", help="measure rows that are there")
    parser.add_argument("--one", nargs=5, metavar=("CASE", "WAY", "BATCH", "SEED", "STEPS"))
    args = parser.parse_args()
    if args.one:
        name, way, *numbers = args.one
        print(json.dumps(one(name, way, *map(int, numbers))))
        return
    rows = Rows("peak.csv", COLUMNS, KEY)
    for name in args.cases:
        batch = CASES[name][1][args.larger]
        for seed in args.seeds:
            for way in args.ways:
                if "head" in way and name not in LANGUAGE:
                    continue
                key = {"model": name, "batch": batch, "way": way, "seed": seed}
                if rows.has(**key, steps=args.steps) and not args.again:
                    continue
                row = run(name, way, batch, seed, args.steps)
                if row is not None:
                    rows.put(**row)
                    print(
                        f"{name:10} {batch:3} {way:24} seed {seed}: "
                        f"peak {row['peak_mb']:7.1f} MB, "
                        f"typical {row['typical_mb']:7.1f}, {row['seconds']:6.1f} s, "
                        f"loss {row['loss']:.4f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
