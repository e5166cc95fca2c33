"""The check mode: what an exchange gave, held against an exact all-reduce."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from encke.errors import EnckeError
from encke.wire.failure import answered
from encke.wire.lattice import deviation
from encke.wire.message import Stretch

_DOUBT = 6.0  # standard deviations that a measured variance may exceed the expected by


class CertificateError(EnckeError, RuntimeError):
    """A checked exchange did not keep what it promises."""


class Certified(NamedTuple):
    """What was measured on one stretch."""

    mean_square: float
    largest: float


def certify(
    given: Tensor,
    mean: Tensor,
    stretches: Sequence[Stretch],
    *,
    group: Any,
    world: int,
    unbiased: bool,
) -> list[Certified]:
    """Errors of `mean` against the mean of `given` over ranks, taken exactly in float64.

    Raises `CertificateError` where an error exceeds its bound, or, if errors are meant to be
    `unbiased` (dithered), where their variance exceeds bound² / 3P by more than chance. What
    rounding in the tensors' own precision adds to any sum of floats is allowed on top.
    """
    exact = given.to(torch.float64)
    exact = torch.stack([exact, exact.abs()])
    if world > 1:
        with answered(group):
            dist.all_reduce(exact, group=group)
    exact /= world
    # One rounding for each addition, one for the division, one on the way out.
    unit = (world + 1) * torch.finfo(given.dtype).eps + torch.finfo(mean.dtype).eps
    found = []
    for stretch in stretches:
        here = slice(stretch.start, stretch.stop)
        true, magnitude, got = exact[0, here], exact[1, here], mean[here].to(torch.float64)
        finite = torch.isfinite(true)
        if not bool((torch.isfinite(got) == finite).all()):
            raise CertificateError(f"{stretch.name}: values that are not finite were moved")
        error = torch.where(finite, got - true, 0.0).abs()
        rounding = unit * torch.where(finite, magnitude, 0.0)
        largest = float(error.max()) if error.numel() else 0.0
        bound = stretch.bound or 0.0
        if bool((error > bound + rounding).any()):
            raise CertificateError(
                f"{stretch.name}: the mean is off by {largest:.6g}, the bound is {bound:.6g}"
            )
        square = float(error.square().mean()) if error.numel() else 0.0
        _check_variance(
            stretch,
            square,
            float(rounding.max()) if unbiased and error.numel() else math.inf,
            world,
        )
        found.append(Certified(square, largest))
    return found


def _check_variance(stretch: Stretch, square: float, rounding: float, world: int) -> None:
    if not stretch.bound or not stretch.values:
        return
    expected = deviation(stretch.bound, world) ** 2
    by_chance = 1.0 + _DOUBT * math.sqrt(2.0 / stretch.values)
    if square > expected * by_chance + rounding**2 + 2 * rounding * math.sqrt(expected):
        raise CertificateError(
            f"{stretch.name}: the error of the mean has variance {square:.6g}, promised was "
            f"{expected:.6g} = bound²/(3·{world})"
        )
