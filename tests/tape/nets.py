"""A small network, policies and ways to look at a graph, for the tests beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import encke

POLICIES = pytest.mark.parametrize(
    "policy",
    [encke.Fixed(encke.Lossless()), encke.Fixed(encke.RangeRelative(1e-2))],
    ids=["lossless", "lossy"],
)
LOSSLESS = encke.Fixed(encke.Lossless())
LOSSY = encke.Fixed(encke.RangeRelative(1e-2))


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.LayerNorm(8 * 8 * 8),
        nn.Linear(8 * 8 * 8, 10),
    )


IMAGES = (8, 3, 16, 16)


def gradients(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    model(x).square().mean().backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def equal(one: list[Tensor | None], other: list[Tensor | None]) -> bool:
    return all(
        a is b if a is None or b is None else torch.equal(a, b)
        for a, b in zip(one, other, strict=True)
    )


def nodes_behind(t: Tensor) -> Iterator[Any]:
    seen, stack = set(), [t.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(n for n, _ in node.next_functions)


def raw_saved(t: Tensor) -> Iterator[tuple[Any, str, Any]]:
    """Every saved tensor behind `t` as node, role and raw saved tensor."""
    for node in nodes_behind(t):
        for name in dir(node):
            if name.startswith("_raw_saved_") and name != "_raw_saved_tensors":
                role, raw = name.removeprefix("_raw_saved_"), getattr(node, name)
                if isinstance(getattr(node, f"_saved_{role}"), Tensor):
                    yield node, role, raw
