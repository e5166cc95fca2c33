"""What an error of each weight does to the loss: slope, and curvature per tensor.

The loss rises by about g·e + ½ Σ h e² for an error e, with g the gradient and h the diagonal
of the Gauss–Newton matrix (docs/store-theory.md). h is averaged over a tensor, so a few
backward passes with drawn residuals are enough.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from encke.store.errors import StoreError
from encke.store.inputs import InputMoment, InputMoments
from encke.store.objective import DrawnResiduals, Objective

_FEWEST, _MOST = 4, 16  # backward passes with drawn residuals
_HESSIAN_PROBES = 8
GAUSS_NEWTON = "Gauss-Newton diagonal, drawn residuals"


@dataclass(kw_only=True)
class Curvature:
    """What calibration has found, by parameter name.

    loss       of the model as it is, the mean over the batches
    slopes     gradients of that, on the host
    mean       curvature of a weight, on average over its tensor
    squares    curvature of each weight, of those with few weights
    inputs     second moments of what a weight is multiplied with
    source     in words, where the curvature comes from
    """

    loss: float
    mean: dict[str, float]
    source: str
    slopes: dict[str, Tensor] = field(default_factory=dict)
    squares: dict[str, Tensor] = field(default_factory=dict)
    inputs: dict[str, InputMoment] = field(default_factory=dict)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The floating-point parameters, all with gradients, and the model in eval mode.

    Modes, flags and torch's random numbers are as before at the end.
    """
    modes = {module: module.training for module in model.modules()}
    parameters = {n: p for n, p in model.named_parameters() if p.is_floating_point()}
    flags = {name: p.requires_grad for name, p in parameters.items()}
    chance = torch.get_rng_state()
    try:
        model.eval()
        for p in parameters.values():
            p.requires_grad_(True)
        yield dict(parameters)
    finally:
        for module, mode in modes.items():
            module.training = mode
        for name, p in parameters.items():
            p.requires_grad_(flags[name])
        torch.set_rng_state(chance)


def calibrate(
    model: nn.Module,
    batches: Iterable[Any],
    objective: Objective,
    *,
    feedback: bool = True,
    seed: int = 0,
) -> Curvature:
    """Loss, slopes, curvature and input moments over the batches."""
    kept = list(batches)
    if not kept:
        raise StoreError("data is empty; give at least one batch")
    with undisturbed(model) as parameters:
        moments = InputMoments(parameters)
        slopes = {name: torch.zeros(p.shape) for name, p in parameters.items()}
        total = 0.0
        for batch in kept:
            loss = _loss(model, batch, objective)
            total += float(loss.detach())
            for name, g in _gradients(loss, parameters):
                slopes[name] += g.detach().float().cpu() / len(kept)
        level = total / len(kept)
        if not math.isfinite(level):
            raise StoreError(f"the loss of the calibration data is {level}")
        watched = moments if feedback else None
        squares, source = _squares(model, kept, objective, parameters, seed, watched)
    found = moments.moments() if source == GAUSS_NEWTON else {}
    mean = {name: float(s.mean()) for name, s in squares.items()}
    # Squares of examples' gradients have the mean of those of batches, and less noise.
    mean |= {
        name: sum(float(m.diagonal().mean()) for m in moment.matrices) / len(moment.matrices)
        for name, moment in found.items()
    }
    return Curvature(
        loss=level,
        mean=mean,
        source=source,
        slopes=slopes,
        squares={name: s for name, s in squares.items() if s.numel() <= 1 << 16},
        inputs=found,
    )


def mean_loss(model: nn.Module, batches: Iterable[Any], objective: Objective) -> float:
    """The mean loss over batches, in eval mode; nothing is left behind."""
    with undisturbed(model), torch.no_grad():
        losses = [float(_loss(model, batch, objective)) for batch in batches]
    return sum(losses) / max(1, len(losses))


def _loss(model: nn.Module, batch: Any, objective: Objective) -> Tensor:
    loss = objective(model, batch)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise StoreError(
            f"objective gave a {type(loss).__name__}; it must return the loss as one number "
            "in a tensor"
        )
    return loss.reshape(())


def _gradients(loss: Tensor, parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    for name, g in zip(parameters, found, strict=True):
        if g is not None:
            yield name, g.to_dense() if g.is_sparse else g


def _squares(
    model: nn.Module,
    batches: list[Any],
    objective: Objective,
    parameters: Mapping[str, Tensor],
    seed: int,
    moments: InputMoments | None,
) -> tuple[dict[str, Tensor], str]:
    generator = torch.Generator().manual_seed(seed)
    squares = {name: torch.zeros(p.shape) for name, p in parameters.items()}
    probes = min(_MOST, max(_FEWEST, len(batches)))
    scale = 1.0
    for batch in itertools.islice(itertools.cycle(batches), probes):
        drawn = DrawnResiduals(generator)
        with drawn, moments or nullcontext():
            loss = _loss(model, batch, objective)
        if drawn.losses == 0 or not loss.requires_grad:
            return _hessian(model, batches, objective, parameters, generator)
        if drawn.losses == 1 and drawn.values[0] > 0:
            # An objective that scales its loss by a has a of its curvature, not a².
            plain = float(_loss(model, batch, objective).detach())
            scale = drawn.values[0] / plain if plain > 0 else 1.0
            scale = 1.0 if not 1e-6 < scale < 1e6 or abs(scale - 1.0) < 0.05 else scale
        for name, g in _gradients(loss, parameters):
            squares[name] += g.detach().float().cpu() ** 2 * (scale / probes)
    if moments is not None:
        moments.divide(probes, scale)
    return squares, GAUSS_NEWTON


def _hessian(
    model: nn.Module,
    batches: list[Any],
    objective: Objective,
    parameters: Mapping[str, Tensor],
    generator: torch.Generator,
) -> tuple[dict[str, Tensor], str]:
    """Hutchinson's estimate, for losses that have no labels to draw."""
    squares = {name: torch.zeros(p.shape) for name, p in parameters.items()}
    for batch in itertools.islice(itertools.cycle(batches), _HESSIAN_PROBES):
        loss = _loss(model, batch, objective)
        found = torch.autograd.grad(
            loss, list(parameters.values()), allow_unused=True, create_graph=True
        )
        used = {n: g for n, g in zip(parameters, found, strict=True) if g is not None}
        signs = {
            n: (torch.randint(0, 2, g.shape, generator=generator) * 2 - 1).to(g)
            for n, g in used.items()
        }
        along = torch.stack([(g * signs[n]).sum() for n, g in used.items()]).sum()
        if not along.requires_grad:
            continue
        for name, product in _gradients(along, parameters):
            if name in signs:
                found_here = (product.detach() * signs[name]).float().cpu()
                squares[name] += found_here / _HESSIAN_PROBES
    for name, s in squares.items():
        # Noise may make single values negative; a tensor's mean is what counts.
        mean = float(s.mean())
        squares[name] = torch.full_like(s, max(mean, 0.0)) if mean <= 0 else s.clamp(min=0.0)
    return squares, "Hessian diagonal, Hutchinson's estimate"
