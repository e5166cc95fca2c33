"""The mass of a jet from its image: what one would cut on without a network.

Pixels are massless particles near the jet's axis, so that

    m² ≈ Σ_{i<j} p_i p_j |r_i − r_j|²

with transverse momentum p and place r in pixels. The unit is GeV times a pixel's width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def image_mass(images: Tensor) -> Tensor:
    """m of each image (n, rows, columns).

    The double sum is Σp · Σp|r|² − |Σp r|², so one pass over the pixels does.

    >>> image = torch.zeros(1, 4, 4)
    >>> image[0, 0, 0], image[0, 0, 3] = 2.0, 2.0
    >>> float(image_mass(image))
    6.0
    """
    p = images.double()
    rows = torch.arange(p.shape[1], dtype=torch.float64)[:, None]
    columns = torch.arange(p.shape[2], dtype=torch.float64)[None, :]
    total = p.sum((1, 2))
    moment = (p * (rows.square() + columns.square())).sum((1, 2))
    up, across = (p * rows).sum((1, 2)), (p * columns).sum((1, 2))
    square = total * moment - up.square() - across.square()
    return square.clamp_min(0).sqrt()


class MassCut:
    """Scores a jet by how often a mass like its own is signal among those seen before."""

    def __init__(self, images: Tensor, labels: Tensor, *, bins: int = 20) -> None:
        mass = image_mass(images)
        shares = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
        self.edges = torch.quantile(mass, shares)
        place = torch.bucketize(mass, self.edges)
        signal = torch.bincount(place, labels.double(), minlength=bins)
        self.purity = (signal + 0.5) / (torch.bincount(place, minlength=bins) + 1)

    def __call__(self, images: Tensor) -> Tensor:
        return self.purity[torch.bucketize(image_mass(images), self.edges)]
