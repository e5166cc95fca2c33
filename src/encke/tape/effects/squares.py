"""Squared norms of tensors of any floating type, without a copy in another one."""

from __future__ import annotations

import torch
from torch import Tensor


def square(t: Tensor | None) -> float:
    """‖t‖², in double precision where that matters: the sum, not the squares.

    >>> square(torch.full((4,), 2.0, dtype=torch.float64)), square(None)
    (16.0, 0.0)
    >>> square(torch.tensor([3 + 4j]))
    25.0
    >>> square(torch.full((4,), 1e-30)) > 0
    True
    """
    if t is None:
        return 0.0
    flat = t.detach()
    if flat.layout != torch.strided:
        flat = flat.coalesce().values() if flat.layout == torch.sparse_coo else flat.values()
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj())
    # A norm in single precision of double values is refused, and would overflow sooner.
    wide = torch.float64 if flat.dtype == torch.float64 else torch.float32
    norm = float(torch.linalg.vector_norm(flat, dtype=wide))
    if norm == 0.0 and flat.numel():
        # Squares of gradients that have nearly vanished are less than the smallest number.
        largest = float(flat.abs().max())
        if largest > 0.0:
            norm = largest * float(torch.linalg.vector_norm(flat / largest, dtype=wide))
    return norm**2
