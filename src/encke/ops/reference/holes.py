"""Which positions of a tensor have no value, and what is there instead, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from encke.ops.reference.quantise import PATTERN


def count_not_finite(x: Tensor, samples: int) -> int:
    flat = x.reshape(-1)[:: max(1, x.numel() // samples)]
    return int(flat.numel() - torch.count_nonzero(torch.isfinite(flat)))


def mark_values(x: Tensor, fill: tuple[float, ...]) -> tuple[Tensor, int]:
    """Where `x` is finite and none of `fill`, and how often.

    >>> mark_values(torch.tensor([1.0, 1e36, float("nan"), 2.0]), (1e36,))
    (tensor([ True, False, False,  True]), 2)
    """
    valid = torch.isfinite(x)
    for number in fill:
        valid &= x != torch.tensor(number, dtype=x.dtype, device=x.device)
    return valid, int(torch.count_nonzero(valid))


def shared_pattern(x: Tensor, valid: Tensor) -> int | None:
    """The bits that `x` has wherever `valid` is false; None if they differ."""
    found = x.contiguous().view(PATTERN[x.dtype])[~valid]
    if found.numel() == 0 or bool((found != found[0]).any()):
        return None
    return int(found[0])


def put_pattern(y: Tensor, where: Tensor, bits: int) -> int:
    """Writes the bits wherever `where` is true; how often that was."""
    y.view(PATTERN[y.dtype]).masked_fill_(where, bits)
    return int(torch.count_nonzero(where))
