"""Networks trained here, for the benchmarks of the store; kept in a folder once trained.

The folder of trained states is an argument of each program: the first that needs a network
trains it, which takes one or two minutes on one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encke import store
from encke.study import data
from encke.study.zoo import build

NAMES = ("gpt", "resnet", "llama")
_STEPS = {"gpt": 900, "resnet": 400, "llama": 400}


@dataclass(kw_only=True)
class Trained:
    """A trained network and what it is judged by.

    calibration  batches that a plan is made with, unseen ones that were never trained on
    labels       behind one gradient of the training
    """

    name: str
    seed: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    calibration: list[Any]
    unseen: list[Any]
    source: data.Source

    @property
    def labels(self) -> int:
        return 128 if self.name == "resnet" else 16 * 128

    @property
    def values(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def objective(self, model: nn.Module, batch: Any) -> Tensor:
        return loss_of(model, batch)

    def steps(self, first: int) -> Iterator[Any]:
        """Batches of the training from a step on, the same for every model."""
        return batches(self.name, self.source, self.seed + 1000 * (1 + first))

    def loss(self, batches: list[Any]) -> float:
        return store_loss(self.model, batches)


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy, from scores or from a `transformers` model's own loss."""
    x, y = batch
    if hasattr(model, "config"):
        scores = model(input_ids=x, use_cache=False).logits
    else:
        scores = model(x)
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))


def store_loss(model: nn.Module, batches: list[Any]) -> float:
    """The mean loss in eval mode."""
    mode = model.training
    model.eval()
    with torch.no_grad():
        total = sum(float(loss_of(model, batch)) for batch in batches)
    model.train(mode)
    return total / len(batches)


def network(name: str, seed: int) -> nn.Module:
    """An untrained network."""
    torch.manual_seed(seed)
    if name == "gpt":
        return build("gpt", vocab=65, block_size=128, n_layer=4, n_head=4, n_embd=128)
    if name == "resnet":
        return build("resnet_cifar", depth=14, width=24)
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=65,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config)


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "resnet":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    rate = 4e-3 if name == "gpt" else 2e-3
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)


def batches(name: str, source: data.Source, seed: int) -> Iterator[Any]:
    size = 128 if name == "resnet" else 16
    while True:
        for batch in source.batches("train", size, seed=seed, augment=True, drop_last=True):
            yield batch.inputs[0], batch.target
        seed += 1


def source_of(name: str, root: Path) -> data.Source:
    if name == "resnet":
        return data.load("cifar10", root=root, train=12_000, test=2_000)
    return data.load("text", root=root, block_size=128)


def trained(name: str, seed: int, *, root: Path, folder: Path) -> Trained:
    """The network `name` of a seed, trained or read from `folder`."""
    source = source_of(name, root)
    model = network(name, seed)
    optimizer = optimizer_of(name, model)
    path = folder / f"{name}-{seed}.encke"
    if path.exists():
        store.load(path, model, optimizer)
    else:
        _train(name, seed, model, optimizer, source)
        folder.mkdir(parents=True, exist_ok=True)
        store.save(path, model, optimizer)
    size, count = (250, 8) if name == "resnet" else (16, 16)
    known = source.batches("train", size, seed=seed + 77)
    other = source.batches("test", size)
    return Trained(
        name=name,
        seed=seed,
        model=model,
        optimizer=optimizer,
        calibration=[
            (b.inputs[0], b.target) for b, _ in zip(known, range(count), strict=False)
        ],
        unseen=[(b.inputs[0], b.target) for b, _ in zip(other, range(count), strict=False)],
        source=source,
    )


def _train(
    name: str,
    seed: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: data.Source,
) -> None:
    steps = _STEPS[name]
    rates = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=optimizer.param_groups[0]["lr"], total_steps=steps, pct_start=0.1
    )
    model.train()
    for batch, _ in zip(batches(name, source, seed), range(steps), strict=False):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
