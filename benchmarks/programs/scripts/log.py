"""Arguments that every program takes, and the line of JSON that it prints at its end."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time

import torch

LAST_STEPS = 10


def arguments(steps: int, names: tuple[str, ...] = ()) -> argparse.Namespace:
    """`--seed`, `--steps`, and which of `names` to train; seeds torch."""
    parser = argparse.ArgumentParser()
    if names:
        parser.add_argument("name", choices=names)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    return args


class Log:
    """Losses and times of the steps of a training loop, which begins when it is made."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self._baseline_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._times = [time.perf_counter()]

    def step(self, loss: float) -> None:
        """A step is over."""
        self.losses.append(float(loss))
        self._times.append(time.perf_counter())

    def end(self) -> None:
        """Print the loss of the last steps, the time of the loop, the peak before it."""
        steps = [b - a for a, b in zip(self._times, self._times[1:], strict=False)]
        last = self.losses[-LAST_STEPS:]
        result = {
            "loss": statistics.fmean(last) if last else None,
            "steps": len(self.losses),
            "seconds": sum(steps),
            "step_seconds": statistics.median(steps) if steps else None,
            "baseline_mb": self._baseline_kb / 1024,
        }
        print(json.dumps(result), flush=True)
