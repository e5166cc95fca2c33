"""Training programs that know nothing of Encke, plainly and under `encke run`.

    python benchmarks/programs/run.py                     # all programs, seeds 0 and 1
    python benchmarks/programs/run.py --only gpt2 --seeds 0 1 2

Writes benchmarks/results/programs.csv, a row for each program as soon as it is measured; a
program that has a row is passed over unless `--only` names it or `--again` is given. Each run
is a process of its own in the environment as it is: no variable is set for the allocator or
for threads. Plain runs and runs with Encke take turns. The process peak is the kernel's own
count (`ru_maxrss`) of the largest process; the baseline is the peak of the plain process when
its training loop begins: imports, data, model and optimizer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tape")]

from catalogue import PROGRAMS, Program  # noqa: E402
from rows import Rows  # noqa: E402
from verdict import verdict  # noqa: E402

COLUMNS = (
    "program", "verdict", "steps", "seeds",
    "exits_plain", "exits_encke",
    "losses_plain", "losses_encke", "loss_plain", "loss_encke", "loss_spread",
    "baseline_mb", "peak_plain_mb", "peak_encke_mb", "peak_ratio", "above_baseline_ratio",
    "stored_bytes", "plain_bytes", "plain_over_stored",
    "loop_plain_s", "loop_encke_s", "time_ratio", "step_time_ratio",
    "run_plain_s", "run_encke_s",
    "said",
)  # fmt: skip
TIME_LIMIT_S = 600


class Run(NamedTuple):
    """What one process did."""

    exit: int
    seconds: float
    peak_mb: float
    #: The line of JSON at its end; empty if it printed none.
    printed: dict[str, Any]
    #: What Encke wrote to stderr.
    said: str


def run_once(program: Program, arguments: list[str], *, log: Path | None = None) -> Run:
    """Run a program: with `encke run --log LOG` where a log is given, plainly where not."""
    prefix = ["-m", "encke", "run", "--log", str(log)] if log else []
    script = str(HERE / "scripts" / program.script)
    command = [sys.executable, *prefix, script, *program.arguments, *arguments]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, text=True)
        status, usage = _wait(process)
        seconds = time.perf_counter() - start
        out.seek(0), err.seek(0)
        said = [line for line in err.read().splitlines() if "encke" in line.lower()]
        return Run(
            status, seconds, usage.ru_maxrss / 1024, _last_json(out.read()), _joined(said)
        )


def _wait(process: subprocess.Popen[str]) -> tuple[int, Any]:
    """Exit code and resource usage; a process that takes too long is ended."""
    deadline = time.monotonic() + TIME_LIMIT_S
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage
        if time.monotonic() > deadline:
            process.kill()
            deadline = float("inf")
        time.sleep(0.01)


def _last_json(text: str) -> dict[str, Any]:
    found = re.findall(r'^\{"loss".*\}$', text, re.MULTILINE)
    return json.loads(found[-1]) if found else {}


def _joined(lines: list[str]) -> str:
    """Lines that differ, in one, without those of a traceback and without folders."""
    kept = [line.strip() for line in lines if not line.lstrip().startswith('File "')]
    return re.sub(r"/\S*/", "", " / ".join(dict.fromkeys(kept)))[:600]


def measure(name: str, seeds: list[int], plain_seeds: list[int]) -> dict[str, object]:
    """The row of a program; of `plain_seeds` only the losses are wanted, for their spread."""
    program = PROGRAMS[name]
    plain, encke, stored, without = [], [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            log = Path(folder) / f"{seed}.jsonl"
            plain.append(run_once(program, ["--seed", str(seed)]))
            encke.append(run_once(program, ["--seed", str(seed)], log=log))
            kept = (
                [json.loads(line) for line in log.read_text().splitlines()]
                if log.exists()
                else []
            )
            stored = max(stored, sum(one.get("peak_stored_bytes", 0) for one in kept))
            without = max(without, sum(one.get("peak_plain_bytes", 0) for one in kept))
    only_plain = [run_once(program, ["--seed", str(seed)]) for seed in plain_seeds]
    baseline = _median(plain, "baseline_mb")
    peaks = [statistics.median(run.peak_mb for run in runs) for runs in (plain, encke)]
    loops = [_median(runs, "seconds") for runs in (plain, encke)]
    steps = [_median(runs, "step_seconds") for runs in (plain, encke)]
    losses = [[_number(run, "loss") for run in runs] for runs in (plain + only_plain, encke)]
    facts = {
        "exits": [run.exit for run in encke],
        "plain_exits": [run.exit for run in plain],
        "plain_losses": losses[0],
        "losses": losses[1],
        "said": encke[0].said,
        "stored_ratio": without / stored if stored else None,
        "time_ratio": loops[1] / loops[0],
        "peak_ratio": peaks[1] / peaks[0],
    }
    return {
        "program": name,
        "verdict": verdict(**facts),
        "steps": plain[0].printed.get("steps"),
        "seeds": " ".join(map(str, [*seeds, *plain_seeds])),
        "exits_plain": " ".join(str(run.exit) for run in plain),
        "exits_encke": " ".join(str(run.exit) for run in encke),
        "losses_plain": " ".join(f"{loss:.5g}" for loss in losses[0]),
        "losses_encke": " ".join(f"{loss:.5g}" for loss in losses[1]),
        "loss_plain": statistics.fmean(losses[0]),
        "loss_encke": statistics.fmean(losses[1]),
        "loss_spread": max(losses[0]) - min(losses[0]),
        "baseline_mb": baseline,
        "peak_plain_mb": peaks[0],
        "peak_encke_mb": peaks[1],
        "peak_ratio": facts["peak_ratio"],
        "above_baseline_ratio": (peaks[1] - baseline) / (peaks[0] - baseline),
        "stored_bytes": stored,
        "plain_bytes": without,
        "plain_over_stored": facts["stored_ratio"],
        "loop_plain_s": loops[0],
        "loop_encke_s": loops[1],
        "time_ratio": facts["time_ratio"],
        "step_time_ratio": steps[1] / steps[0],
        "run_plain_s": statistics.median(run.seconds for run in plain),
        "run_encke_s": statistics.median(run.seconds for run in encke),
        "said": facts["said"],
    }


def _median(runs: list[Run], measure: str) -> float:
    return statistics.median(_number(run, measure) for run in runs)


def _number(run: Run, measure: str) -> float:
    """A number that the program printed; NaN where it printed none."""
    value = run.printed.get(measure)
    return float("nan") if value is None else float(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=tuple(PROGRAMS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument(
        "--plain-seeds",
        nargs="*",
        type=int,
        default=[],
        help="further seeds that are run plainly only, for the spread of the losses",
    )
    parser.add_argument("--again", action="store_true", help="measure programs that have rows")
    parser.add_argument("--list", action="store_true", help="print the names of the programs")
    args = parser.parse_args()
    if args.list:
        print("\n".join(PROGRAMS))
        return 0
    rows = Rows("programs.csv", COLUMNS, key=("program",))
    for name in args.only or PROGRAMS:
        if not args.only and not args.again and rows.has(program=name):
            continue
        missing = [p for p in PROGRAMS[name].needs if importlib.util.find_spec(p) is None]
        if missing:
            print(f"{name}: passed over, needs {', '.join(missing)}", file=sys.stderr)
            continue
        row = measure(name, args.seeds, args.plain_seeds)
        rows.put(**row)
        print(
            f"{name}: {row['verdict']}; peak {row['peak_ratio']:.2f}, "
            f"time {row['time_ratio']:.2f}; {row['said']}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
