"""COMET's rule for the bound, for comparison.

COMET (Jin et al., PVLDB 2022) takes the error that a layer's weight gradient gets to be
normally distributed with σ ≈ a · L̄ · √(N·R) · e, where a = 0.32, L̄ is the mean magnitude of
the incoming gradient, N the number of values summed and R the share that is not zero, and
asks for σ = 1 % of the mean magnitude of the momentum. Written with the sum over positions
in full that is σ² = e²/3 · R · ΣdY² for each weight, which is what is used here. The bound is
set for each layer by itself, refreshed every 1,000 steps, and only the inputs of linear
layers and convolutions are compressed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from encke.bound import Absolute, RangeRelative
from encke.control import arguments
from encke.control.reference import Reference
from encke.tape.policy import KEEP, GradientEffect, SavedTensor, StorageDecision

_PRODUCTS = frozenset({"Convolution", "Addmm", "Mm", "Linear"})
_WARM_UP = RangeRelative(1e-3)


class Comet:
    """One bound for each product layer, from its own gradient and momentum.

    share     σ of the gradient error, as a share of the mean magnitude of the momentum
    """

    def __init__(
        self,
        share: float = 0.01,
        *,
        optimizers: Iterable[torch.optim.Optimizer] = (),
        model: nn.Module | None = None,
        refresh: int = 1000,
        dither: bool = False,
        codec: str = "entropy",
    ) -> None:
        self.share = arguments.number(
            share, of="share", low=0, high=1, hint="0.01, the default, is COMET's"
        )
        self.refresh = arguments.count(refresh, of="refresh")
        optimizers = arguments.optimizers(optimizers, model)
        self._reference = Reference("magnitude" if optimizers else "gradient", optimizers)
        self._parameters = dict(model.named_parameters()) if model is not None else {}
        self._dither, self._codec = dither, arguments.codec(codec)
        self.bounds: dict[str, float] = {}
        self._step = 0
        self._observing = False

    def begin(self, step: int) -> None:
        self._step += 1
        self._observing = self._step in (1, 2, 10, 100) or self._step % self.refresh == 0

    def treat(self, sight: SavedTensor) -> StorageDecision:
        if sight.site.op not in _PRODUCTS:
            return KEEP
        bound = self.bounds.get(str(sight.site))
        return StorageDecision(
            bound=_WARM_UP if bound is None else Absolute(bound),
            codec=self._codec,
            dither=self._dither,
            derive=False,
            observe=self._observing or bound is None,
        )

    def observe(self, effect: GradientEffect) -> None:
        if not effect.products or not effect.parameter or effect.error <= 0:
            return
        self._reference.see(effect.parameter, effect.parameter_square)
        scale = self._reference.of(effect.parameter, self._parameters.get(effect.parameter))
        variance = effect.predicted / effect.error**2
        if scale > 0 and variance > 0:
            self.bounds[str(effect.site)] = self.share * math.sqrt(scale / variance)

    def state_dict(self) -> dict[str, Any]:
        squares = dict(self._reference.squares)
        return {"step": self._step, "bounds": dict(self.bounds), "reference": squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step, self.bounds = state["step"], dict(state["bounds"])
        self._reference.squares = dict(state.get("reference", {}))
