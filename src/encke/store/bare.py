"""Bounds for weights that come without their model: from a file with an optimizer's state."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from encke.bound import Absolute, Bound
from encke.bound.allocate import Demand, water_fill
from encke.store.container import is_store
from encke.store.errors import StoreError
from encke.store.loading import load
from encke.store.moments import debiased
from encke.store.planning import ASSUMED_EXAMPLES

#: The shape of a second moment, and its mean.
Moment = tuple[tuple[int, ...], float]


def bounds_of(
    state: Mapping[str, Tensor],
    curvature: Path,
    *,
    loss: float,
    examples: int | None = None,
    level: float | None = None,
) -> dict[str, Bound]:
    """Bounds by name that raise the loss by a share of `loss`, by second moments.

    examples  labels behind one gradient; level: the loss as it is now (1 unless given)
    """
    found = bounds_from_moments(
        state,
        _second_moments(curvature),
        loss=loss,
        examples=examples,
        level=level,
        where=str(curvature),
    )
    return {f"model/{name}": bound for name, bound in found.items()}


def bounds_from_moments(
    state: Mapping[str, Tensor],
    moments: list[Moment],
    *,
    loss: float,
    examples: int | None,
    level: float | None,
    where: str,
) -> dict[str, Bound]:
    """Bounds by name from second moments in any order.

    moments  shape and mean of each; where: what they are from, in words
    """
    if not 0 < loss <= 1:
        raise StoreError(f"the loss may rise by {loss}, allowed is above 0 and up to 1")
    floats = {n: x for n, x in state.items() if x.is_floating_point() and x.numel()}
    demands = {}
    for name, moment in _means_by_shape(floats, moments, where).items():
        x = floats[name]
        mean = (examples or ASSUMED_EXAMPLES) * moment
        rms = float(x.double().square().mean().sqrt())
        demands[name] = Demand(
            values=x.numel(), sensitivity=x.numel() * mean / 6.0, largest=1.5 * rms
        )
    allowed = loss * (1.0 if level is None else abs(level))
    found = water_fill(demands, variance=allowed)
    return {name: Absolute(error) for name, error in found.items() if error > 0}


def _second_moments(path: Path) -> list[Moment]:
    if is_store(path):
        state: Any = load(path, only="optimizer/*").get("optimizer")
    else:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            raise StoreError(f"{path} is no file of torch.save: {str(error)[:200]}") from None
    if isinstance(state, Mapping) and isinstance(state.get("optimizer"), Mapping):
        state = state["optimizer"]
    states = state.get("state") if isinstance(state, Mapping) else None
    if not isinstance(states, Mapping):
        raise StoreError(f"{path} has no state of an optimizer")
    found = [
        (tuple(states[key]["exp_avg_sq"].shape), debiased(states[key]))
        for key in sorted(states, key=str if _mixed(states) else None)
        if isinstance(states[key], Mapping) and "exp_avg_sq" in states[key]
    ]
    if not found:
        raise StoreError(f"{path} has no second moments called exp_avg_sq")
    return found


def _mixed(keys: Mapping[Any, Any]) -> bool:
    return not all(isinstance(key, int) for key in keys)


def _means_by_shape(
    floats: Mapping[str, Tensor], moments: list[Moment], where: str
) -> dict[str, float]:
    """The mean second moment of each tensor; tensors of one shape share the mean of all.

    An optimizer's state has numbers for names, in an order that the file need not have.
    """
    groups: dict[tuple[int, ...], list[float]] = {}
    for shape, mean in moments:
        groups.setdefault(shape, []).append(mean)
    for shape, means in groups.items():
        fitting = sum(tuple(x.shape) == shape for x in floats.values())
        if fitting < len(means):
            raise StoreError(
                f"{where} has {len(means)} second moments of shape {list(shape)}, the weights "
                f"have {fitting} such tensors"
            )
    return {
        name: sum(groups[tuple(x.shape)]) / len(groups[tuple(x.shape)])
        for name, x in floats.items()
        if tuple(x.shape) in groups
    }
