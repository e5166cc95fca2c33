"""Losses with targets that the model itself would draw: the way to its true Fisher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from encke.errors import UnsupportedError

LossName = Literal["cross_entropy", "mse", "binary_cross_entropy"]
#: Output → the loss of drawn targets, summed over its terms, and the number of terms.
SampledLoss = Callable[[Tensor], tuple[Tensor, int]]


def sampled_loss(
    output: Tensor, *, loss: LossName | SampledLoss, dim: int, generator: Generator | None
) -> tuple[Tensor, int]:
    """The summed loss of targets drawn from what `output` predicts, and its number of terms.

    "cross_entropy" has its classes along `dim`; every other index is a term. For "mse" and
    "binary_cross_entropy" (of scores) each value is a term. The mean over terms is the loss of
    the same name in torch.nn.functional, and the curvature is that loss's own Gauss-Newton.

    >>> drawn, terms = sampled_loss(
    ...     torch.zeros(5, 3, requires_grad=True), loss="cross_entropy", dim=1, generator=None
    ... )
    >>> terms, bool((drawn - 5 * torch.tensor(3.0).log()).abs() < 1e-5)
    (5, True)
    """
    if callable(loss):
        return loss(output)
    if loss == "cross_entropy":
        scores = output.movedim(dim, -1).flatten(0, -2).float()
        with torch.no_grad():
            target = _categorical(scores, generator)
        return F.cross_entropy(scores, target, reduction="sum"), len(scores)
    values = output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
    with torch.no_grad():
        if loss == "mse":
            # (y - t)² is -log p of a normal distribution of variance 1/2.
            noise = torch.empty_like(values).normal_(0.0, 0.5**0.5, generator=generator)
            target = values + noise
        elif loss == "binary_cross_entropy":
            chance = torch.empty_like(values).uniform_(generator=generator)
            target = (chance < values.sigmoid()).to(values.dtype)
        else:
            raise UnsupportedError(
                f"loss is {loss!r}, allowed are {', '.join(get_args(LossName))}, or a "
                "function of the output that gives the summed loss of drawn targets and its "
                "number of terms"
            )
    if loss == "mse":
        return F.mse_loss(values, target, reduction="sum"), values.numel()
    total = F.binary_cross_entropy_with_logits(values, target, reduction="sum")
    return total, values.numel()


def _categorical(scores: Tensor, generator: Generator | None) -> Tensor:
    """One class a row. The largest of score + Gumbel noise is drawn with softmax's chances."""
    noise = torch.empty_like(scores).exponential_(generator=generator)
    return (scores - noise.log_()).argmax(-1)
