"""A policy that treats every tensor alike and remembers what it is told, and a check."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import encke
from encke.tape import GradientEffect, SavedTensor, StorageDecision


class Watching:
    """Every tensor as `how` says, with its effect on gradients reported.

    effects, sights  of the step that runs, or ran last
    """

    def __init__(self, bound: encke.Bound, **how: Any) -> None:
        self.effects: list[GradientEffect] = []
        self.sights: list[SavedTensor] = []
        self._how = {"bound": bound, "observe": True, **how}

    def begin(self, step: int) -> None:
        self.effects.clear()
        self.sights.clear()

    def treat(self, sight: SavedTensor) -> StorageDecision:
        self.sights.append(sight)
        return StorageDecision(**self._how)

    def observe(self, effect: GradientEffect) -> None:
        self.effects.append(effect)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Gating(Watching):
    """One bound for everything, with gates wherever the tape may set them."""

    def __init__(self, error: float, *, gate: bool = True, check: bool = False) -> None:
        super().__init__(
            encke.Absolute(error),
            codec="entropy",
            normalise=True,
            gate=gate,
            residual=gate,
            check=check,
        )


def check_two_backwards(net: nn.Module, x: Tensor) -> None:
    """A graph that is retained gives the same gradients once more."""
    encke.attach(net, policy=Gating(0.1))
    loss = net(x).square().mean()
    loss.backward(retain_graph=True)
    once = {name: p.grad.clone() for name, p in net.named_parameters()}
    net.zero_grad()
    loss.backward()
    assert all(torch.equal(p.grad, once[name]) for name, p in net.named_parameters())
