"""From averaged factors to what preconditions: inverses or eigenvectors, many at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Share of a factor's eigenvalues' magnitude that may be negative, and hence clamped to zero.
CLAMPED_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class Solved:
    """Of n matrices. `matrix` is the damped inverse, or the eigenvectors with their `values`;
    of a diagonal the inverse itself (n, d), or nothing and the values. `clamped` says which had
    to be changed more than rounding explains."""

    matrix: Tensor | None
    values: Tensor | None
    clamped: Tensor


def inverse_of(factors: Tensor, *, damping: Tensor) -> Solved:
    """(F + damping·I)⁻¹ by one Cholesky decomposition each; `damping` is (n,).

    >>> solved = inverse_of(torch.eye(3)[None], damping=torch.tensor([1.0]))
    >>> bool((solved.matrix - torch.eye(3) / 2).abs().max() < 1e-6)
    True
    """
    if factors.dim() == 2:
        fine = torch.zeros(len(factors), dtype=torch.bool)
        return Solved(
            matrix=1 / (factors.clamp_min(0) + damping[:, None]), values=None, clamped=fine
        )
    damped = factors.clone()
    damped.diagonal(dim1=1, dim2=2).add_(damping[:, None])
    lower, failed = torch.linalg.cholesky_ex(damped)
    clamped = (failed != 0).cpu()
    if bool(clamped.any()):
        lower[clamped] = torch.eye(factors.shape[1], dtype=factors.dtype, device=factors.device)
    inverse = torch.cholesky_inverse(lower)
    if bool(clamped.any()):
        values, vectors = torch.linalg.eigh(factors[clamped])
        values = values.clamp_min(0) + damping[clamped, None]
        rough = (vectors / values[:, None, :]) @ vectors.mT
        inverse[clamped] = (rough + rough.mT) / 2  # symmetric to the bit, as Cholesky's are
    return Solved(matrix=inverse, values=None, clamped=clamped)


def eigen_of(factors: Tensor) -> Solved:
    """Eigenvectors and eigenvalues, negative ones set to zero."""
    if factors.dim() == 2:
        fine = torch.zeros(len(factors), dtype=torch.bool)
        return Solved(matrix=None, values=factors.clamp_min(0), clamped=fine)
    values, vectors = torch.linalg.eigh(factors)
    negative = -values.clamp_max(0).sum(1)
    clamped = (negative > CLAMPED_SHARE * values.abs().sum(1)).cpu()
    return Solved(matrix=vectors, values=values.clamp_min(0), clamped=clamped)


def split_damping(traces: Tensor, partner: Tensor, damping: float) -> Tensor:
    """λ divided between two sides: √λ·√(t / t of the partner), t the mean of the diagonal.

    The product of both is λ, and both sides are damped alike relative to their size (Martens
    and Grosse 2015, section 6.3). A side without any size is damped like its partner.
    """
    ratio: Tensor = traces / traces[partner]
    usable = torch.isfinite(ratio) & (ratio > 0)
    return torch.where(usable, ratio * damping, torch.full_like(ratio, damping)).sqrt()
