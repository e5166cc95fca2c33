"""Rounding with error feedback: later weights of a row make up for the errors of earlier ones.

A layer computes Wx, so an error E of its weight matters as trace(E A Eᵀ) with A the second
moment of its inputs. Rounding column by column, the best correction of the columns that are
left has a closed form in the Cholesky factor of A⁻¹ (as in GPTQ). The lattice and the decoder
are those of plain rounding; only the encoder knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 128
_DAMPING = 0.01  # of the mean diagonal


@dataclass(frozen=True, kw_only=True, eq=False)
class Correction:
    """A⁻¹ of a layer's inputs, factored, with its columns in the order of rounding.

    gain  mean error in A's metric, relative to rounding to the nearest
    """

    order: Tensor
    factor: Tensor
    gain: float


def correction(moment: Tensor) -> Correction | None:
    """The correction for inputs of second moment `moment`; None if there is none to make."""
    diagonal = moment.diagonal()
    mean = float(diagonal.mean())
    if not mean > 0.0 or not bool(torch.isfinite(moment).all()):
        return None
    order = torch.argsort(diagonal, descending=True)
    damped = moment[order][:, order] + _DAMPING * mean * torch.eye(len(order)).double()
    factor, failed = torch.linalg.cholesky_ex(damped)
    if int(failed):
        return None
    inverse = torch.cholesky_inverse(factor)
    upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
    if int(failed):
        return None
    gain = float((upper.diagonal() ** -2).mean() / damped.diagonal().mean())
    return Correction(order=order, factor=upper.float(), gain=min(1.0, gain))


def rounded(weight: Tensor, step: float, error: float, chosen: Correction) -> Tensor:
    """Codes for the rows of `weight`, each within 2 · `error` of its weight.

    weight  float32, one row an output
    """
    left = weight[:, chosen.order].clone()
    low, high = left - error, left + error  # where a weight may be moved to before rounding
    codes = torch.empty_like(left)
    upper = chosen.factor
    for start in range(0, left.shape[1], _BLOCK):
        end = min(start + _BLOCK, left.shape[1])
        mistakes = torch.empty(left.shape[0], end - start)
        for column in range(start, end):
            wanted = left[:, column]
            moved = torch.minimum(torch.maximum(wanted, low[:, column]), high[:, column])
            code = torch.round(moved / step)
            codes[:, column] = code
            mistake = (wanted - code * step) / upper[column, column]
            mistakes[:, column - start] = mistake
            if column + 1 < end:
                left[:, column + 1 : end].addr_(
                    mistake, upper[column, column + 1 : end], alpha=-1
                )
        if end < left.shape[1]:
            left[:, end:] -= mistakes @ upper[start:end, end:]
    back = torch.empty_like(codes)
    back[:, chosen.order] = codes
    return back
