"""Symmetric matrices as their lower triangles: half the bytes to send or to save.

The lower ones, because those are what Cholesky and eigenvalue decompositions read: rounding may
make the upper differ in a last bit, which then changes nothing.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import torch
from torch import Tensor

from encke.errors import UnsupportedError


@lru_cache(maxsize=256)
def _lower(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Flat places of the lower triangle, and for each entry of the matrix its place in that."""
    rows, columns = torch.tril_indices(size, size, device=device)
    places = rows * size + columns
    order = torch.empty((size, size), dtype=torch.int64, device=device)
    number = torch.arange(len(places), device=device)
    order[rows, columns] = number
    order[columns, rows] = number
    return places, order.flatten()


def pack(matrices: Tensor) -> Tensor:
    """(n, d, d), symmetric → (n, d(d+1)/2).

    >>> pack(torch.tensor([[[1.0, 2.0], [2.0, 3.0]]]))
    tensor([[1., 2., 3.]])
    """
    size = matrices.shape[-1]
    places, _ = _lower(size, matrices.device)
    return matrices.reshape(len(matrices), size * size)[:, places]


def unpack(triangles: Tensor) -> Tensor:
    """(n, d(d+1)/2) → (n, d, d), symmetric to the bit.

    >>> unpack(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[[1., 2.],
             [2., 3.]]])
    """
    entries = triangles.shape[-1]
    size = (isqrt(8 * entries + 1) - 1) // 2
    if size * (size + 1) // 2 != entries:
        raise UnsupportedError(f"{entries} entries are not a triangle of any matrix")
    _, order = _lower(size, triangles.device)
    return triangles[:, order].reshape(len(triangles), size, size)
