"""Speed and peak memory of saving and loading a state of 600 MB, beside safetensors.

python benchmarks/store/speed.py --folder /path/to/a/disk

Weights, first and second moments of 50 million parameters with AdamW; bounds are given, so
that no curvature is computed. Each way runs in a process of its own: its peak memory above
the state is that of the whole process, after a small state was saved. `save_to_500_mb_per_s`
adds what a disk of that speed would take to the time of writing to memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from store_rows import put

KEY = ("way", "threads")
LARGEST = 4096 * 2048


def state_of(parameters: int, height: int = 4096) -> tuple[dict[str, Any], dict[str, Any]]:
    """Matrices of 8 million values, and vectors; moments as a training leaves them."""
    torch.manual_seed(0)
    weights, states = {}, {}
    for number in range(parameters // LARGEST):
        w = torch.randn(height, 2048) * 0.02
        spread = torch.exp2(torch.randn(height, 1) + torch.randn(1, 2048))
        v = spread * torch.rand(height, 2048).square_() * 1e-8
        weights[f"layer.{number}.weight"] = w
        states[number] = {
            "step": torch.tensor(100.0),
            "exp_avg": torch.randn(height, 2048) * v.sqrt() * 0.3,
            "exp_avg_sq": v,
        }
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": list(range(len(states)))}]
    return weights, {"state": states, "param_groups": groups}


def one(way: str, threads: int, folder: Path) -> dict[str, Any]:
    import encke
    from encke import store

    torch.set_num_threads(threads)
    weights, optimizer = state_of(50_000_000)
    total = 12 * sum(w.numel() for w in weights.values())
    path = folder / f"{way}.bin"
    flat = dict(weights)
    for number, states in optimizer["state"].items():
        flat |= {f"{number}.{name}": x for name, x in states.items()}

    def save(weights: Any = weights, optimizer: Any = optimizer, flat: Any = flat) -> None:
        if way == "safetensors":
            from safetensors.torch import save_file

            save_file(flat, path)
        elif way == "torch.save":
            torch.save(flat, path)
        else:
            lossy = way == "store"
            options: dict[str, Any] = {}
            if lossy:
                options = {"bounds": encke.RmsRelative(0.2), "moments": store.Moments()}
            store.save(path, weights, optimizer, **options)

    def load() -> Any:
        if way == "safetensors":
            from safetensors.torch import load_file

            return {name: x.clone() for name, x in load_file(path).items()}
        if way == "torch.save":
            return torch.load(path, weights_only=True)
        return store.load(path)

    few, moments = state_of(LARGEST, height=64)
    save(few, moments, few)  # loads what is loaded once
    before = _reset_peak()
    save()
    above = _memory("VmHWM") - before
    times = [_timed(save) for _ in range(3)]
    reads = [_timed(load) for _ in range(3)]
    size = path.stat().st_size
    path.unlink()
    return {
        "way": way,
        "threads": threads,
        "save_gb_per_s": total / min(times) / 1e9,
        "load_gb_per_s": total / min(reads) / 1e9,
        "ratio": total / size,
        "peak_above_state_mb": above / 1024,
        "peak_over_largest_tensor": 1024 * above / (4 * LARGEST),
        "save_to_500_mb_per_s": min(times) + size / 5e8,
    }


def _memory(field: str) -> int:
    """A line of this process's status, in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(field)


def _reset_peak() -> int:
    """Forget the peak so far; what the process has now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _timed(action: Any) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where files are written (a memory disk)")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "THREADS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.one:
            way, threads = arguments.one
            print(json.dumps(one(way, int(threads), Path(folder))))
            return 0
        for threads in (1, 2):
            for way in ("safetensors", "torch.save", "store", "store, exact"):
                command = [sys.executable, __file__, "--one", way, str(threads)]
                command += ["--folder", folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                row = json.loads(done.stdout.splitlines()[-1])
                put("store_speed.csv", [row], key=KEY)
                print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
