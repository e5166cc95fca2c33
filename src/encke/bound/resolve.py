"""The one place that turns a bound into what a codec needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from encke.bound.kinds import (
    Absolute,
    Bound,
    FixedRate,
    Lossless,
    PointwiseRelative,
    RangeRelative,
    RmsRelative,
)
from encke.errors import BoundError


@dataclass(frozen=True, slots=True)
class Promise:
    """A bound made concrete for one tensor: exactly one field is set.

    error      the largest |decoded - x| for this tensor (may be 0: keep exactly)
    pointwise  the largest |decoded - x| / |x|
    rate       bits for each value's code
    """

    error: float | None = None
    pointwise: float | None = None
    rate: float | None = None

    @property
    def exact(self) -> bool:
        return self.error == 0.0 or self.pointwise == 0.0


EXACT = Promise(error=0.0)
_TOGETHER = 1 << 18  # values that are taken to double precision at a time
_LARGEST = 1.7976931348623157e308


def resolve(bound: Bound, x: torch.Tensor, valid: torch.Tensor | None = None) -> Promise:
    """What `bound` means for `x`, or for those of its values where `valid` is true.

    >>> resolve(RangeRelative(0.01), torch.tensor([-1.0, 3.0, float("nan")]))
    Promise(error=0.04, pointwise=None, rate=None)
    """
    if type(bound) is Bound:
        raise BoundError("bound is Bound(), which says nothing; use Absolute, RangeRelative, …")
    if isinstance(bound, Absolute) and x.is_floating_point():
        return Promise(error=float(bound.error))
    if isinstance(bound, Lossless) or not (
        x.is_floating_point() or isinstance(bound, FixedRate)
    ):
        return EXACT  # integers and booleans are always kept exactly
    if valid is not None and isinstance(bound, (RangeRelative, RmsRelative)):
        x = x[valid]
    if isinstance(bound, RangeRelative):
        low, high = _finite_extent(x)
        extent = high - low
        if math.isinf(extent):  # of float64 values: halved, the sum is finite
            return Promise(error=min(2.0 * (bound.ratio * (high / 2 - low / 2)), _LARGEST))
        return Promise(error=bound.ratio * extent)
    if isinstance(bound, RmsRelative):
        return Promise(error=min(bound.ratio * _finite_rms(x), _LARGEST))
    if isinstance(bound, PointwiseRelative):
        return Promise(pointwise=float(bound.ratio))
    if isinstance(bound, FixedRate):
        return Promise(rate=float(bound.bits))
    raise BoundError(
        f"bound is {bound!r}, allowed are Absolute, RangeRelative, RmsRelative, "
        "PointwiseRelative, FixedRate, Lossless; write Absolute(1e-3) rather than 1e-3"
    )


def _finite_extent(x: torch.Tensor) -> tuple[float, float]:
    if x.numel() == 0:
        return 0.0, 0.0
    low, high = (v.item() for v in torch.aminmax(x))
    if not (math.isfinite(low) and math.isfinite(high)):
        finite = x[torch.isfinite(x)]
        if finite.numel() == 0:
            return 0.0, 0.0
        low, high = (v.item() for v in torch.aminmax(finite))
    return float(low), float(high)


def _norm(x: torch.Tensor) -> float:
    """‖x‖ in double precision, without a copy of x in it."""
    if x.dtype == torch.float64:
        return float(torch.linalg.vector_norm(x))
    flat = x.reshape(-1)
    parts = (flat[i : i + _TOGETHER] for i in range(0, flat.numel(), _TOGETHER))
    return math.hypot(
        *(float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in parts)
    )


def _finite_rms(x: torch.Tensor) -> float:
    if x.numel() == 0:
        return 0.0
    norm = _norm(x)
    if math.isfinite(norm):
        return norm / math.sqrt(x.numel())
    # Something is not finite, or the squares are not: without the one, scaled by the other.
    finite = x[torch.isfinite(x)].to(torch.float64)
    if finite.numel() == 0:
        return 0.0
    largest = float(finite.abs().max())
    if largest == 0.0:
        return 0.0
    scaled = torch.linalg.vector_norm(finite / largest).item()
    return float(scaled / math.sqrt(finite.numel()) * largest)
