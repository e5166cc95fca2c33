"""Factors and solutions as plain tensors that a checkpoint can hold."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from encke.errors import UnsupportedError
from encke.wire.kfac.factors import Factors
from encke.wire.kfac.family import packed, restore
from encke.wire.kfac.settings import Method
from encke.wire.kfac.solutions import Solutions

_SIDES = ("rows", "columns")


def of_factors(factors: Factors) -> dict[str, dict[str, Any]]:
    """Running averages by unit: lower triangles, or diagonals."""
    saved: dict[str, dict[str, Any]] = {}
    for number, unit in enumerate(factors.units):
        means = [factors.at[number, side].mean for side in _SIDES]
        halves = packed(means, symmetric=True)
        saved[unit.name] = {
            "updates": factors.updates[number],
            **{side: half.clone() for side, half in zip(_SIDES, halves, strict=True)},
        }
    return saved


def load_factors(factors: Factors, saved: dict[str, dict[str, Any]]) -> None:
    """Take back what `of_factors` gave; nothing is changed if the units differ."""
    own = {unit.name for unit in factors.units}
    if own != saved.keys():
        raise UnsupportedError(
            f"the state is of another model: it lacks {sorted(own - saved.keys())} and has "
            f"{sorted(saved.keys() - own)} beside"
        )
    for number, unit in enumerate(factors.units):
        for side in _SIDES:
            mean, half = factors.at[number, side].mean, saved[unit.name][side]
            size = mean.shape[-1]
            entries = size if mean.dim() == 2 else size * (size + 1) // 2
            if tuple(half.shape) != (len(mean), entries):
                raise UnsupportedError(
                    f"the state's {side} of {unit.name} have shape {tuple(half.shape)}, here "
                    f"they have {(len(mean), entries)}"
                )
    for number, unit in enumerate(factors.units):
        factors.updates[number] = int(saved[unit.name]["updates"])
        for side in _SIDES:
            mean = factors.at[number, side].mean
            restore(mean, saved[unit.name][side].to(mean), symmetric=True)


def of_solutions(solutions: Solutions, *, method: Method) -> dict[str, Any] | None:
    """Every solved unit's, or None on a rank that holds only a part of them."""
    if len(solutions.placement.columns) > 1:
        return None
    units = solutions.factors.units
    return {
        "method": method,
        "damping": solutions.damping,
        "units": {
            unit.name: [
                part.clone()
                for part in packed(solutions.parts_of(n), symmetric=method == "inverse")
            ]
            for n, unit in enumerate(units)
            if solutions.ready[n]
        },
    }


def load_solutions(
    solutions: Solutions, saved: dict[str, Any] | None, *, method: Method
) -> bool:
    """Take back what `of_solutions` gave; whether it had all that is needed.

    The answer is the same on every rank that loads the same state, whatever it holds.
    """
    factors = solutions.factors
    seen = {unit.name for n, unit in enumerate(factors.units) if factors.updates[n]}
    if saved is None or saved["method"] != method or not seen <= saved["units"].keys():
        return False
    for number, unit in enumerate(factors.units):
        parts: list[Tensor] = solutions.parts_of(number)
        if unit.name in saved["units"] and parts:
            for target, part in zip(parts, saved["units"][unit.name], strict=True):
                restore(target, part.to(target), symmetric=method == "inverse")
    solutions.restored(damping=float(saved["damping"]))
    return True
