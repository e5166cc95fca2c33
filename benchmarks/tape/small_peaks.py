"""Highest live memory of five small trainings: benchmarks/results/small_peaks.csv.

    python benchmarks/tape/small_peaks.py --write

Twelve steps each, first and observed ones included, in a process of its own. Counted are live
bytes of the pool above those before the first step, which depend neither on the machine's load
nor on its speed, so a test compares them with the committed figures: a change that stores fewer
bytes but raises the peak fails. Plain training with the pool stands beside.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results" / "small_peaks.csv"
STEPS = 12
CASES = ("gpt", "resnet", "unet", "vit", "mixer")


def _build(name: str) -> tuple[object, object, Callable[[], object]]:
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    if name == "gpt":
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config(vocab_size=16000, n_layer=3, n_embd=96, n_head=4))
        ids = torch.randint(0, 16000, (4, 128))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        return model, optimizer, lambda: model(input_ids=ids, labels=ids).loss
    if name == "resnet":
        from encke.study.zoo.resnet_cifar import resnet_cifar

        model = resnet_cifar(depth=14)
        images, labels = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    elif name == "unet":
        from encke.study.zoo.unet import unet

        model = unet(channels=3, outputs=3, width=8, depth=2)
        images = torch.randn(8, 3, 64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return model, optimizer, lambda: F.mse_loss(model(images), images)
    elif name == "vit":
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            hidden_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=384,
            image_size=64,
            patch_size=4,
            num_labels=10,
        )
        inner = ViTForImageClassification(config)
        images, labels = torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))
        optimizer = torch.optim.AdamW(inner.parameters(), lr=1e-3, fused=True)
        return inner, optimizer, lambda: F.cross_entropy(inner(images).logits, labels)
    else:
        layers = [
            nn.Sequential(
                nn.LayerNorm(128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)
            )
            for _ in range(4)
        ]
        model = nn.Sequential(*layers, nn.Linear(128, 10))
        images, labels = torch.randn(2048, 128), torch.randint(0, 10, (2048,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, lambda: F.cross_entropy(model(images), labels)


def measure(name: str, *, with_encke: bool) -> int:
    """The highest live bytes of a training in this process, above those before it."""
    import torch

    import encke.memory

    torch.set_num_threads(1)
    if not encke.memory.install():
        raise SystemExit(f"no pool: {encke.memory.pool().reason}")
    model, optimizer, loss_of = _build(name)
    assert isinstance(model, torch.nn.Module)
    assert isinstance(optimizer, torch.optim.Optimizer)
    if with_encke:
        encke.attach(model, optimizer, slowdown=math.inf)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    pool = encke.memory.pool()
    before = pool.statistics().live
    pool.reset_peak()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of()
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        del loss
        optimizer.step()
    return int(pool.statistics().peak_live - before)


def in_a_process(name: str, *, with_encke: bool) -> int:
    command = [sys.executable, __file__, "--one", name, str(int(with_encke))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    found: int = json.loads(done.stdout.splitlines()[-1])
    return found


def committed() -> dict[str, tuple[int, int]]:
    """By case: bytes of plain training and with Encke."""
    with RESULTS.open(newline="") as file:
        return {
            row["case"]: (int(row["plain_bytes"]), int(row["encke_bytes"]))
            for row in csv.DictReader(file)
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", nargs=2)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], with_encke=args.one[1] == "1")))
        return
    rows = []
    for name in CASES:
        plain, small = (in_a_process(name, with_encke=way) for way in (False, True))
        rows.append((name, plain, small))
        print(f"{name:8} plain {plain / 2**20:6.1f} MB, Encke {small / 2**20:6.1f} MB")
    if args.write:
        with RESULTS.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("case", "plain_bytes", "encke_bytes"))
            writer.writerows(rows)


if __name__ == "__main__":
    main()
