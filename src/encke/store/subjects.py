"""The tensors of a model that get an error from its loss budget, and what each error costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from encke.bound.allocate import Demand
from encke.store.curvature import Curvature
from encke.store.feedback import Correction, correction
from encke.store.pruned import is_pruned
from encke.store.state import names_of_parameter

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
#: Bound of tensors that the loss does not depend on, as a share of their root mean square.
_UNUSED = 0.02


@dataclass(kw_only=True, eq=False)
class Subject:
    """A tensor of a model with its share in the loss.

    names       in the state of the model; several if it is tied
    value       the tensor itself: it is written to while a loss is measured
    curvature   of one value, on average
    slope       gradient of the loss, or None
    variance    a running variance: its error is a factor, its curvature that of the logarithm
    corrections of its inputs, one a group; empty for rounding to the nearest
    pruned      mostly zeros, which are kept
    """

    names: list[str]
    value: Tensor
    curvature: float
    slope: Tensor | None = None
    variance: bool = False
    corrections: list[Correction]
    moments: list[Tensor]
    transposed: bool = False
    pruned: bool = False

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def gain(self) -> float:
        """Mean effect of an error after feedback, relative to rounding to the nearest."""
        if not self.corrections:
            return 1.0
        return sum(c.gain for c in self.corrections) / len(self.corrections)

    def demand(self) -> Demand:
        """For the allocator: ½ Σ h e²/3 for errors uniform in ±e."""
        count = int((self.value != 0).sum()) if self.pruned else self.value.numel()
        square = float(self.value.detach().double().square().sum())
        rms = math.sqrt(square / count) if count else 0.0
        largest = 0.25 if self.variance else 1.5 * rms
        if self.curvature <= 0.0:
            largest = 0.01 if self.variance else _UNUSED * rms
        return Demand(
            values=count,
            sensitivity=count * self.curvature * self.gain / 6.0,
            largest=largest if largest > 0 else 1.0,  # all zeros: any bound does
        )

    def as_rows(self, x: Tensor) -> Tensor:
        """x as a matrix with one row an output, as feedback wants it."""
        return x.t() if self.transposed else x.reshape(x.shape[0], -1)

    def from_rows(self, rows: Tensor) -> Tensor:
        shape = self.value.shape
        return rows.t().contiguous() if self.transposed else rows.reshape(shape)

    def rise(self, error: Tensor) -> float:
        """The second-order rise of the loss for an error of each value."""
        if not self.moments or error.numel() == 0:
            return 0.5 * self.curvature * float(error.double().square().sum())
        rows = self.as_rows(error).double()
        total = 0.0
        for part, moment in zip(rows.chunk(len(self.moments)), self.moments, strict=True):
            total += 0.5 * float(((part @ moment) * part).sum())
        return total


def subjects_of(model: nn.Module, found: Curvature, *, feedback: bool) -> list[Subject]:
    """Every floating-point parameter, and the statistics of batch norms."""
    names = names_of_parameter(model)
    subjects = []
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point() or parameter.numel() == 0:
            continue
        subjects.append(_parameter(names[name], parameter.detach(), found, feedback=feedback))
    known = {name for subject in subjects for name in subject.names}
    subjects += [s for s in _statistics(model, found) if s.name not in known]
    stored = set(model.state_dict())
    return [s for s in subjects if stored.intersection(s.names)]


def _parameter(names: list[str], value: Tensor, found: Curvature, *, feedback: bool) -> Subject:
    name = names[0]
    mostly_zero = is_pruned(value)
    feedback = feedback and len(names) == 1 and not mostly_zero
    moment = found.inputs.get(name) if feedback else None
    corrections = [correction(m) for m in moment.matrices] if moment else []
    complete = [c for c in corrections if c is not None]
    if len(complete) != len(corrections) or value.shape[:1].numel() == 0:
        complete = []
    return Subject(
        names=names,
        value=value,
        curvature=found.mean.get(name, 0.0),
        slope=found.slopes.get(name),
        corrections=complete,
        moments=moment.matrices if moment and complete else [],
        transposed=bool(moment and moment.transposed),
        pruned=mostly_zero,
    )


def _statistics(model: nn.Module, found: Curvature) -> Iterator[Subject]:
    """Running means and variances, whose curvature follows from that of bias and weight.

    y = w (x − μ)/√(v + ε) + b, so ∂L/∂μ = −(w/√(v + ε)) ∂L/∂b and, per unit of log2 v,
    ∂L/∂log2 v = −½ ln2 · v/(v + ε) · w ∂L/∂w.
    """
    for path, module in model.named_modules():
        if not isinstance(module, _NORMS) or module.running_var is None:
            continue
        mean, variance = module.running_mean, module.running_var
        prefix = f"{path}." if path else ""
        bias, weight = (found.squares.get(f"{prefix}{part}") for part in ("bias", "weight"))
        if bias is None or weight is None or mean is None or not mean.numel():
            continue
        w = module.weight.detach().float().cpu()
        v = variance.detach().float().cpu()
        slope_b, slope_w = found.slopes[f"{prefix}bias"], found.slopes[f"{prefix}weight"]
        gain = w / torch.sqrt(v + module.eps)
        spread = 0.5 * math.log(2.0) * v / (v + module.eps) * w
        yield Subject(
            names=[f"{prefix}running_mean"],
            value=mean,
            curvature=float((bias * gain**2).mean()),
            slope=-gain * slope_b,
            corrections=[],
            moments=[],
        )
        yield Subject(
            names=[f"{prefix}running_var"],
            value=variance,
            curvature=float((weight * spread**2).mean()),
            slope=-spread * slope_w,
            variance=True,
            corrections=[],
            moments=[],
        )
