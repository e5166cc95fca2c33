"""Pruning by magnitude, and keeping it while a network is trained again."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from encke.errors import BoundError
from encke.store.errors import StoreError


class Pruning:
    """What `prune` returns: call `apply()` after each step of an optimizer.

    masks  by parameter name: where a value was kept
    """

    def __init__(self, model: nn.Module, masks: dict[str, Tensor]) -> None:
        self._parameters = dict(model.named_parameters())
        self.masks = masks

    def apply(self) -> None:
        """Set what was pruned to zero again."""
        with torch.no_grad():
            for name, mask in self.masks.items():
                self._parameters[name].mul_(mask)

    @property
    def density(self) -> float:
        """The share of values that were kept, of the pruned parameters."""
        values = sum(mask.numel() for mask in self.masks.values())
        return sum(int(mask.sum()) for mask in self.masks.values()) / max(1, values)


def prune(model: nn.Module, density: Mapping[str, float]) -> Pruning:
    """Set the smallest values of matrices to zero.

    density  by pattern of parameter names, the share of values to keep; the first pattern that
             fits counts, and vectors are never pruned

    >>> layer = nn.Linear(10, 10)
    >>> pruning = prune(layer, {"weight": 0.25})
    >>> int((layer.weight != 0).sum()), pruning.density
    (25, 0.25)
    """
    masks: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        fitting = [share for pattern, share in density.items() if fnmatchcase(name, pattern)]
        if not fitting or parameter.ndim < 2 or not parameter.numel():
            continue
        share = fitting[0]
        if not 0.0 < share <= 1.0:
            raise BoundError(f"density of {name} is {share}, allowed is above 0 and up to 1")
        kept = max(1, round(share * parameter.numel()))
        order = parameter.detach().abs().reshape(-1).topk(kept).indices
        mask = torch.zeros(parameter.numel(), dtype=torch.bool, device=parameter.device)
        mask[order] = True
        masks[name] = mask.view(parameter.shape)
    if not masks:
        raise StoreError(f"no matrix of the model fits {', '.join(density)}")
    pruning = Pruning(model, masks)
    pruning.apply()
    return pruning
