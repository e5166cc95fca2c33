"""Rows of results made up for tests: shaped like real ones, measured by nobody.

`python tests/study/report/made_rows.py out.html [cells]` writes a page of them to look at.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]

NETWORKS = {
    "resnet_cifar": ("cifar10", "%", "accuracy", 78.0, 212 << 20),
    "vgg16": ("fashion_mnist", "%", "accuracy", 91.5, 96 << 20),
    "gpt": ("shakespeare", "nats", "validation loss", 1.61, 310 << 20),
    "unet": ("climate", "K", "root mean square error", 0.82, 64 << 20),
    "vit": ("cifar10", "%", "accuracy", 64.0, 150 << 20),
    "mlp": ("digits", "%", "accuracy", 97.2, 3 << 20),
}
#: Label, kind, options; what it divides bytes by, step time, cost (1 is about plain's spread).
POLICIES: list[tuple[str, str, dict[str, Any], float, float, float]] = [
    ("plain", "plain", {}, 1.0, 1.0, 0.0),
    ("Encke, tolerance 0.01", "encke", {"tolerance": 0.01}, 11.3, 1.24, 0.1),
    ("Encke, tolerance 0.05", "encke", {"tolerance": 0.05}, 16.1, 1.22, 0.4),
    ("Encke, tolerance 0.2", "encke", {"tolerance": 0.2}, 21.9, 1.2, 2.8),
    ("bf16 autocast", "bf16", {}, 1.9, 0.92, 0.2),
    ("checkpoint", "checkpoint", {}, 4.2, 1.31, 0.0),
    ("save_on_cpu", "save_on_cpu", {}, 1.0, 1.05, 0.0),
    ("group, 2 bits", "group", {"bits": 2}, 10.4, 1.38, 1.9),
    ("group, 4 bits", "group", {"bits": 4}, 6.3, 1.35, 0.3),
    ("zfp, 8 bits", "zfp", {"rate": 8}, 3.6, 2.4, 0.5),
    ("fixed, 0.1 % of the range", "fixed", {"range": 1e-3}, 3.9, 1.19, 0.1),
    ("fixed, 1 % of the range", "fixed", {"range": 1e-2}, 6.8, 1.18, 0.6),
    ("fixed, 10 % of the range", "fixed", {"range": 1e-1}, 14.0, 1.17, 40.0),
    ("COMET's rule", "comet", {"sigma": 0.01}, 9.1, 1.33, 0.7),
]


def study(rows: list[Row], **changes: Any) -> dict[str, Any]:
    """A study that has these rows."""
    return {
        "schema": 1,
        "name": "made-for-tests",
        "title": "Rows made for tests",
        "cells": [row["cell"] for row in rows],
        "definition": {},
        "created": "2026-01-02T03:04:05+00:00",
        **changes,
    }


def matrix(
    networks: int = 3, policies: int = len(POLICIES), seeds: int = 3, layers: int = 24
) -> list[Row]:
    """Networks × policies × seeds; more networks than there are get a number."""
    names = list(NETWORKS)
    return [
        row(
            model=names[i % len(names)] + ("" if i < len(names) else f"_{i}"),
            network=names[i % len(names)],
            policy=place,
            seed=seed,
            layers=layers,
        )
        for i in range(networks)
        for place in range(policies)
        for seed in range(seeds)
    ]


def row(
    *,
    model: str = "mlp",
    network: str | None = None,
    policy: int = 0,
    seed: int = 0,
    layers: int = 24,
) -> Row:
    """One finished cell."""
    data, unit, metric, level, plain_bytes = NETWORKS[network or model]
    label, kind, options, ratio, relative, cost = POLICIES[policy]
    chance = random.Random(f"{model} {label} {seed}")
    higher = unit == "%"
    spread = 0.35 if higher else 0.012 * level
    final = level + (-1 if higher else 1) * spread * cost + chance.gauss(0, spread * 0.8)
    ratio *= chance.uniform(0.9, 1.15) if kind != "plain" else 1
    stored = plain_bytes / ratio
    tape = kind in ("encke", "fixed", "comet", "group", "zfp")
    tensors = _layers(chance, plain_bytes, stored, kind, layers) if tape else None
    return {
        "schema": 1,
        "cell": f"{model}-{data}-{kind}-{policy}-{seed}",
        "model": model,
        "model_options": {},
        "data": data,
        "data_options": {},
        "policy": label,
        "policy_kind": kind,
        "policy_options": options,
        "seed": seed,
        "status": "done",
        "error": None,
        "environment": {
            "encke": "0.1.0",
            "torch": "2.13.0",
            "python": "3.11.2",
            "backend": "native",
            "instruction_set": "avx2",
            "threads": 1,
            "processor": "made for tests",
        },
        "training": {
            "batch": 64,
            "steps": 780,
            "epochs": 4,
            "optimizer": "SGD",
            "rate": 0.05,
            "parameters": 272_474,
        },
        "metric": {
            "name": metric,
            "unit": unit,
            "better": "higher" if higher else "lower",
            "final": final,
            "best": final + (0.1 if higher else -0.01) * spread,
        },
        "loss": {"train": 0.31, "test": 0.44},
        "curve": _curve(chance, final, cost, higher),
        "memory": {
            "plain_bytes": plain_bytes,
            "stored_bytes": round(stored),
            "ratio": ratio,
            "peak_bytes": round(stored + plain_bytes * 0.31),
        },
        "time": {
            "step_seconds": 0.21 * relative,
            "plain_step_seconds": 0.21,
            "relative": 1.0 if kind == "plain" else relative * chance.uniform(0.95, 1.08),
            "pairs": 40,
        },
        "timeline": _timeline(plain_bytes, stored),
        "layers": tensors,
        "gradient_error": _gradients(chance) if tape else None,
        "error_histogram": _histogram(chance) if tape else None,
        "codecs": {"entropy": round(stored * 0.9), "mask": round(stored * 0.1)}
        if tape
        else None,
        "seconds": 164.0 * relative,
        "finished": "2026-01-02T03:09:05+00:00",
    }


def failed(**changes: Any) -> Row:
    """A cell that broke off."""
    measured = (
        "metric loss curve memory time timeline layers codecs gradient_error error_histogram"
    )
    empty = dict.fromkeys(measured.split())
    error = {
        "type": "RuntimeError",
        "message": "made to fail",
        "traceback": "Traceback (most recent call last):\n  …\nRuntimeError: made to fail",
    }
    return row(**changes) | empty | {"status": "failed", "error": error}


def _curve(chance: random.Random, final: float, cost: float, higher: bool) -> list[Row]:
    points: list[Row] = []
    for i in range(14):
        share = i / 13
        wobble = chance.uniform(0.97, 1.03)
        train = (2.3 * math.exp(-3 * share) + 0.25 + 0.01 * cost) * wobble
        reached = (
            final * (1 - math.exp(-5 * share))
            if higher
            else final * (1 + 1.5 * math.exp(-5 * share))
        )
        points.append(
            {
                "step": i * 60,
                "train_loss": train if i else None,
                "test_loss": train * 1.2,
                "metric": reached * wobble if i < 13 else final,
                "ratio": None,
            }
        )
    return points


def _timeline(plain: float, stored: float) -> Row:
    def hill(top: float, turn: float) -> list[list[float]]:
        times = [i / 60 for i in range(61)]
        return [[t, round(top * (min(t / turn, (1 - t) / (1 - turn)) ** 0.8))] for t in times]

    return {
        "plain": hill(plain, 0.38),
        "kept": hill(stored, 0.42),
        "forward_end": {"plain": 0.38, "kept": 0.42},
    }


def _layers(
    chance: random.Random, plain: float, stored: float, kind: str, count: int
) -> list[Row]:
    cycle = [("Convolution", "input", "lossy"), ("NativeBatchNorm", "input", "lossy")]
    cycle += [("Relu", "result", "mask"), ("Convolution", "input", "derived")]
    cycle += [
        ("NativeBatchNorm", "result1", "exact"),
        ("MaxPool2DWithIndices", "result1", "index"),
    ]
    weights = [0.9 ** (i / 2) * (0.02 if i % 6 == 4 else 1) for i in range(count)]
    whole = sum(weights)
    found = []
    for i, weight in enumerate(weights):
        op, role, how = cycle[i % 6]
        size = plain * weight / whole
        share = {"lossy": 1.6, "mask": 0.4, "derived": 0, "exact": 10, "index": 0.9}[how]
        kept = 0 if how == "derived" else min(size, size * share * stored / plain)
        found.append(
            {
                "module": f"layer{i * 4 // count + 1}.{i}.{op.lower()}",
                "op": op,
                "role": role,
                "how": how,
                "codec": {"lossy": "entropy", "mask": "mask", "index": "index"}.get(how, ""),
                "bound": chance.uniform(0.01, 0.2) if how == "lossy" else 0,
                "elements": round(size / 4),
                "plain_bytes": round(size),
                "stored_bytes": round(kept),
                "why": f"made for tests ({kind})"
                if how != "derived"
                else "relu(norm) of layer",
            }
        )
    return found


def _gradients(chance: random.Random) -> list[Row]:
    found = []
    for i in range(18):
        square = 10 ** chance.uniform(-3, 1)
        predicted = square * 10 ** chance.uniform(-5, -2)
        found.append(
            {
                "module": f"layer{i // 5 + 1}.{i}.conv",
                "op": "Convolution" if i % 3 else "NativeBatchNorm",
                "parameter": f"layer{i // 5 + 1}.{i}.conv.weight",
                "predicted": predicted,
                "measured": predicted * chance.lognormvariate(-0.03, 0.09),
                "square": square,
            }
        )
    return found


def _histogram(chance: random.Random) -> Row:
    counts = [round(51_000 * chance.uniform(0.97, 1.03)) for _ in range(40)]
    return {
        "edges": [-1 + i / 20 for i in range(41)],
        "counts": counts,
        "worst": 0.99994,
        "values": sum(counts),
    }


if __name__ == "__main__":
    from encke.study.report import page

    wanted = int(sys.argv[2]) if len(sys.argv) > 2 else 3 * len(POLICIES) * 3
    rows = matrix(networks=math.ceil(wanted / (3 * len(POLICIES))))[:wanted]
    rows[-1] = failed(
        model=rows[-1]["model"],
        network=next(n for n in NETWORKS if rows[-1]["model"].startswith(n)),
        policy=13,
        seed=2,
    )
    Path(sys.argv[1]).write_text(page(study(rows), rows), encoding="utf-8")
