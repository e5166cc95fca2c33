"""ReLU's side of the tape: signs as bits, and a norm's output behind ReLU from them.

Bits lie as in codec `mask` (docs/format.md, section 10).
"""

from __future__ import annotations

import torch
from torch import Tensor

from encke.ops.reference import mask


def positive_encode(x: Tensor) -> Tensor:
    """One bit a value: 1 unless x <= 0, so for a NaN too, as ReLU's backward has it."""
    return mask.encode(torch.le(x, 0).logical_not_())


def positive_decode(payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """1 and 0, as `dtype`."""
    return mask.decode(payload, count).to(dtype)


def by_channel(x: Tensor, channels: int, inner: int) -> Tensor:
    """x as (outer, channels, inner), also where an extent is 0.

    >>> by_channel(torch.empty(2, 3, 0), 3, 0).shape
    torch.Size([0, 3, 0])
    """
    outer = x.numel() // (channels * inner) if x.numel() else 0
    return x.reshape(outer, channels, inner)


def affine_where(x: Tensor, payload: Tensor, gain: Tensor, shift: Tensor, inner: int) -> Tensor:
    """bit ? x · gain[c] + shift[c] : 0; value i has channel c = (i / inner) % channels."""
    rows = by_channel(x, gain.numel(), inner)
    y = rows * gain.view(1, -1, 1) + shift.view(1, -1, 1)
    chosen = mask.decode(payload, x.numel()).view_as(rows)
    return torch.where(chosen, y, torch.zeros((), dtype=x.dtype, device=x.device)).view_as(x)
