"""Errors of temperature fields, weighted by area, and of their extremes.

Fields are (years, rows, columns) on a Gaussian grid: rows are latitudes, and one near a pole
stands for less area than one at the equator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


def area_weights(rows: int) -> Tensor:
    """The share of the sphere that each row of a Gaussian grid stands for.

    >>> weights = area_weights(64)
    >>> round(float(weights.sum()), 12), bool(weights[0] < weights[32])
    (1.0, True)
    """
    _, weights = np.polynomial.legendre.leggauss(rows)
    return torch.from_numpy(weights / 2)


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Of predicted fields, in the fields' own unit, weighted by area."""

    rmse: float
    mae: float
    bias: float


def errors(
    predicted: Tensor, truth: Tensor, *, weights: Tensor, where: Tensor | None = None
) -> Errors:
    """Errors over all points, or those that `where` marks.

    >>> truth = torch.zeros(1, 2, 2)
    >>> errors(truth + 3, truth, weights=torch.tensor([0.5, 0.5]))
    Errors(rmse=3.0, mae=3.0, bias=3.0)
    """
    error = predicted.double() - truth.double()
    area = point_weights(truth, weights)
    if where is not None:
        area = area * where
    total = float(area.sum())
    if total <= 0:
        raise ValueError("no point is marked: errors are of at least one")
    return Errors(
        rmse=float((area * error.square()).sum() / total) ** 0.5,
        mae=float((area * error.abs()).sum() / total),
        bias=float((area * error).sum() / total),
    )


def point_weights(fields: Tensor, weights: Tensor) -> Tensor:
    """A weight for every point of the fields, from one for each row."""
    return weights.double()[:, None].expand(fields.shape)


def quantile(fields: Tensor, share: float, *, weights: Tensor) -> float:
    """The smallest value at or below which lies at least `share` of the area.

    >>> quantile(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), 0.75,
    ...          weights=torch.tensor([0.5, 0.5]))
    3.0
    """
    values, order = fields.flatten().double().sort()
    reached = point_weights(fields, weights).flatten()[order].cumsum(0)
    # The sum of many weights rounds: a hair below the share has reached it.
    place = int(torch.searchsorted(reached, share * float(reached[-1]) * (1 - 1e-12)))
    return float(values[min(place, len(values) - 1)])


def extremes(fields: Tensor, share: float, *, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of the lowest and of the highest `share` of the area."""
    low = quantile(fields, share, weights=weights)
    high = quantile(fields, 1 - share, weights=weights)
    return fields.double() <= low, fields.double() >= high
