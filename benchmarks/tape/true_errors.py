"""True gradient error over the tolerance, model by model: results/true_errors.csv.

    python benchmarks/tape/true_errors.py

In some steps the gradients are computed twice from the same weights, batch, buffers and random
numbers: with the tape paused, and with it. The difference is the true error, of which the
controller knows nothing. It is taken relative to what the tolerance is a share of
(`encke.control.reference`), read from the exact gradients and the optimizer, and averaged over
the steps looked at. Rows tell the mean over weights (parameters of two dimensions or more) and
the parameter with the largest error, both over the tolerance, with the controller's own
measurement beside. The gradient of some vectors is zero but for rounding (the bias of an
attention's keys): their error is taken relative to the mean square of all gradients.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from rows import Rows
from true_error_cases import CASES, Case

import encke
from encke.control.reference import Reference

EARLY = (2, 4, 5, 7, 8, 10, 11)
SETTLED = (51, 56, 61, 66, 71, 76, 81, 86, 90)
TOLERANCES = (0.003, 0.01, 0.05)
#: Of the mean square of all gradients: what a vector's may be by rounding.
ROUNDING = 1e-9
#: Cases that are trained with other optimizers than their own too.
MORE = {"gpt": ("sgd", "muon"), "mixer": ("sgd", "muon"), "resnet": ("adamw",)}
COLUMNS = (
    "model",
    "optimizer",
    "tolerance",
    "phase",
    "mean_over_tolerance",
    "worst_over_tolerance",
    "worst_parameter",
    "told_mean",
    "told_worst",
    "stored_ratio",
)


def optimizers_of(case: Case, kind: str) -> list[torch.optim.Optimizer]:
    parameters = [p for p in case.model.parameters() if p.requires_grad]
    if kind == "sgd":
        return [torch.optim.SGD(parameters, lr=case.lr, momentum=0.9)]
    if kind == "adamw":
        return [torch.optim.AdamW(parameters, lr=case.lr)]
    flat = [p for p in parameters if p.ndim == 2]
    others = [p for p in parameters if p.ndim != 2]
    return [torch.optim.Muon(flat, lr=1e-2), torch.optim.AdamW(others, lr=case.lr)]


class Study:
    """One training, and the errors of its gradients in the steps looked at."""

    def __init__(self, name: str, kind: str, tolerance: float, **options: Any) -> None:
        torch.manual_seed(0)
        self.case = CASES[name]()
        self.model = self.case.model
        self.kind = kind or self.case.optimizer
        self.tolerance = tolerance
        self.optimizers = optimizers_of(self.case, self.kind)
        self.tape = encke.attach(
            self.model, self.optimizers, tolerance=tolerance, slowdown=math.inf, **options
        )
        self.reference = Reference("step", self.optimizers)
        self.named = dict(self.model.named_parameters())
        self.ratio = 0.0

    def run(self) -> dict[str, dict[str, float]]:
        """By phase and parameter: the error's square over the reference, a mean over steps."""
        errors: dict[str, dict[str, list[float]]] = {
            phase: defaultdict(list) for phase in ("early", "settled")
        }
        for step in range(1, max(SETTLED) + 1):
            seed = 1000 + step
            exact = self._exact(seed) if step in EARLY + SETTLED else {}
            self._pass(seed)
            phase = "settled" if step in SETTLED else "early"
            if step in SETTLED:
                self.ratio = self.tape.last_forward[1] / max(1, self.tape.last_forward[0])
            for name, square in self._errors(exact).items():
                errors[phase][name].append(square)
            for optimizer in self.optimizers:
                optimizer.step()
        return {
            phase: {name: sum(found) / len(found) for name, found in by_name.items()}
            for phase, by_name in errors.items()
        }

    def _pass(self, seed: int) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        torch.manual_seed(seed)
        for loss in self.case.losses(torch.Generator().manual_seed(seed)):
            loss.backward()

    def _exact(self, seed: int) -> dict[str, Tensor]:
        """The gradients of the step to come without the tape; buffers stay as they are."""
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        with self.tape.paused():
            self._pass(seed)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])
        return {n: p.grad.clone() for n, p in self.named.items() if p.grad is not None}

    def _errors(self, exact: dict[str, Tensor]) -> dict[str, float]:
        found = {}
        for name, gradient in exact.items():
            self.reference.see(name, float(gradient.double().square().sum()))
        values = sum(gradient.numel() for gradient in exact.values())
        typical = sum(self.reference.squares[name] for name in exact) / max(1, values)
        for name, gradient in exact.items():
            parameter = self.named[name]
            assert parameter.grad is not None
            error = float((parameter.grad - gradient).double().square().sum())
            scale = self.reference.of(name, parameter)
            if parameter.ndim < 2 and scale < ROUNDING * typical * parameter.numel():
                scale = typical * parameter.numel()
            found[name] = error / scale if scale > 0 else math.inf if error > 0 else 0.0
        return found


def rows_of(name: str, kind: str, tolerance: float, **options: Any) -> list[dict[str, Any]]:
    study = Study(name, kind, tolerance, **options)
    rows = []
    for phase, errors in study.run().items():
        weights = [e for n, e in errors.items() if study.named[n].ndim > 1]
        worst = max(errors, key=errors.__getitem__)
        told = getattr(study.tape.policy, "told", dict)()
        rows.append(
            {
                "model": name,
                "optimizer": study.kind,
                "tolerance": tolerance,
                "phase": phase,
                "mean_over_tolerance": sum(weights) / len(weights) / tolerance,
                "worst_over_tolerance": errors[worst] / tolerance,
                "worst_parameter": worst,
                "told_mean": told.get("measured"),
                "told_worst": told.get("worst"),
                "stored_ratio": study.ratio,
            }
        )
    study.tape.detach()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--tolerances", nargs="+", type=float, default=list(TOLERANCES))
    parser.add_argument("--no-gates", action="store_true")
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("encke").setLevel(logging.ERROR)
    rows = Rows("true_errors.csv", COLUMNS, COLUMNS[:4])
    options = {"gate": False} if given.no_gates else {}
    for name in given.cases:
        for kind in ("", *(() if given.dry else MORE.get(name, ()))):
            for tolerance in given.tolerances if not kind else (0.01,):
                began = time.perf_counter()
                for row in rows_of(name, kind, tolerance, **options):
                    if not given.dry:
                        rows.put(**row)
                    print(
                        f"{name:13} {row['optimizer']:6} {tolerance:<6} {row['phase']:8}"
                        f" mean {row['mean_over_tolerance']:8.2f}"
                        f" worst {row['worst_over_tolerance']:9.2f} {row['worst_parameter']:44}"
                        f" told {row['told_mean']} {row['stored_ratio']:.1f}x"
                        f" {time.perf_counter() - began:.1f}s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
