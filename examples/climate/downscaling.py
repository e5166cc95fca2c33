"""Downscaling: from the means of 4×4 points back to the points.

What one tries first is to interpolate; next, to add the detail that the place has on average
(the delta method). From there a regression at every point can say how its detail follows from
the coarse points around, which is as far as linear methods go, or a network can.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from field_errors import area_weights
from torch import Tensor, nn

FACTOR = 4  # coarse points are means of FACTOR × FACTOR
REACH = 5  # a regression sees REACH × REACH coarse points
RIDGE = 5.0  # K²: keeps its coefficients small where years are few
OUTPUTS = 16  # channels that each point weighs


def coarsen(fields: Tensor) -> Tensor:
    """Means of FACTOR × FACTOR points, weighted by area, of fields (n, rows, columns)."""
    n, rows, columns = fields.shape
    if rows % FACTOR or columns % FACTOR:
        raise ValueError(f"fields are {rows}x{columns}, both must be multiples of {FACTOR}")
    weights = area_weights(rows).view(rows // FACTOR, FACTOR)
    weights = (weights / weights.sum(1, keepdim=True)).to(fields.dtype)
    blocks = fields.view(n, rows // FACTOR, FACTOR, columns // FACTOR, FACTOR).mean(4)
    return (blocks * weights[..., None]).sum(2)


def interpolate(coarse: Tensor) -> Tensor:
    """Bilinear, around the globe: the last column is beside the first."""
    around = torch.cat([coarse[..., -1:], coarse, coarse[..., :1]], dim=-1)
    fine = F.interpolate(around[:, None], scale_factor=FACTOR, mode="bilinear")[:, 0]
    return fine[..., FACTOR:-FACTOR]


def neighbours(coarse: Tensor) -> Tensor:
    """(n, rows, columns, REACH²): the coarse points around each, across the date line too."""
    far = REACH // 2
    wide = torch.cat([coarse[..., -far:], coarse, coarse[..., :far]], dim=-1)
    tall = F.pad(wide[:, None], (0, 0, far, far), mode="replicate")[:, 0]
    return tall.unfold(1, REACH, 1).unfold(2, REACH, 1).flatten(3)


@dataclass(frozen=True, kw_only=True)
class Downscaling:
    """What the training fields say about every place.

    climatology   mean over years
    coarse        the same of the coarse fields
    detail        mean of what interpolation misses
    coefficients  (rows, columns, REACH²): detail by anomaly of the coarse points around
    spread        deviation from year to year of what `delta` misses
    """

    climatology: Tensor
    coarse: Tensor
    detail: Tensor
    coefficients: Tensor
    spread: Tensor

    @classmethod
    def learn(cls, fields: Tensor) -> Downscaling:
        """From fields (years, rows, columns)."""
        coarse = coarsen(fields)
        missed = fields - interpolate(coarse)
        detail = missed.mean(0)
        around = neighbours(coarse - coarse.mean(0)).double()
        by_cell = _by_cell(missed - detail).double()  # (cells, FACTOR², years)
        x = around.flatten(1, 2).transpose(0, 1)  # (cells, years, REACH²)
        normal = x.mT @ x + RIDGE * torch.eye(REACH**2, dtype=torch.float64)
        solved = torch.linalg.solve(normal, x.mT @ by_cell.mT).mT
        return cls(
            climatology=fields.mean(0),
            coarse=coarse.mean(0),
            detail=detail,
            coefficients=_from_cells(solved, fields.shape[1:]).float(),
            spread=missed.std(0, correction=0),
        )

    def delta(self, coarse: Tensor) -> Tensor:
        """Interpolated, with the place's mean detail added."""
        return interpolate(coarse) + self.detail

    def regression(self, coarse: Tensor) -> Tensor:
        """The delta method, with the detail that the coarse points around make likely."""
        around = neighbours(coarse - self.coarse)
        for dimension in (1, 2):
            around = around.repeat_interleave(FACTOR, dimension)
        return self.delta(coarse) + (around * self.coefficients).sum(-1)

    def unit(self) -> float:
        """Root mean square of what `delta` misses: the network's output is in this unit."""
        return float(self.spread.square().mean().sqrt().clamp_min(1e-6))

    def inputs(self, coarse: Tensor) -> Tensor:
        """(n, 4, rows, columns): how unusual the year is, and three fields about the place."""
        unusual = self.delta(coarse) - self.climatology
        place = [self.climatology - self.climatology.mean(), self.detail, self.spread]
        scaled = [field / field.square().mean().sqrt().clamp_min(1e-6) for field in place]
        return torch.stack([unusual, *(field.expand_as(unusual) for field in scaled)], dim=1)

    def target(self, fields: Tensor) -> Tensor:
        """What the network shall make of `inputs(coarsen(fields))`: (n, 1, rows, columns)."""
        return ((fields - self.delta(coarsen(fields))) / self.unit())[:, None]

    def fields(self, output: Tensor, coarse: Tensor) -> Tensor:
        """What the network's output means, in kelvin."""
        return self.delta(coarse) + self.unit() * output[:, 0]


def _by_cell(fields: Tensor) -> Tensor:
    """(cells, FACTOR², n) of fields (n, rows, columns)."""
    n, rows, columns = fields.shape
    cells = fields.view(n, rows // FACTOR, FACTOR, columns // FACTOR, FACTOR)
    return cells.permute(1, 3, 2, 4, 0).reshape(-1, FACTOR**2, n)


def _from_cells(cells: Tensor, shape: torch.Size) -> Tensor:
    """(rows, columns, n) of (cells, FACTOR², n)."""
    rows, columns = shape
    grid = cells.view(rows // FACTOR, columns // FACTOR, FACTOR, FACTOR, -1)
    return grid.permute(0, 2, 1, 3, 4).reshape(rows, columns, -1)


class Globe(nn.Module):
    """A network of fields around the globe that knows one place from another.

    It sees `margin` columns from beyond either edge, which is no edge; and each point weighs
    its channels of output with weights of its own.
    """

    def __init__(
        self, network: nn.Module, *, outputs: int, shape: tuple[int, int], margin: int = 8
    ) -> None:
        super().__init__()
        self.network, self.margin = network, margin
        self.weights = nn.Parameter(torch.full((outputs, *shape), 1 / outputs))

    def forward(self, x: Tensor) -> Tensor:
        around = torch.cat([x[..., -self.margin :], x, x[..., : self.margin]], dim=-1)
        channels = self.network(around)[..., self.margin : -self.margin]
        return (channels * self.weights).sum(1, keepdim=True)
