"""The values that a ReLU lets through, closed up without gaps, and the way back.

Bits lie as in codec `mask` (docs/format.md, section 10). Value i has channel
c = (i / inner) % channels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.reference import mask
from encke.ops.reference.sides import by_channel


def close(
    x: Tensor, payload: Tensor, gain: Tensor, shift: Tensor, inner: int
) -> tuple[Tensor, Tensor]:
    """x · gain[c] + shift[c] where the bit is set; and what there is of it in each channel.

    The rows of the second result are each channel's count, sum and sum of squares.
    """
    rows = by_channel(x, gain.numel(), inner)
    y = rows * gain.view(1, -1, 1) + shift.view(1, -1, 1)
    chosen = mask.decode(payload, x.numel()).view_as(rows)
    seen = torch.where(chosen, y, torch.zeros((), dtype=y.dtype, device=y.device)).double()
    sums = torch.stack([chosen.double().sum((0, 2)), seen.sum((0, 2)), (seen**2).sum((0, 2))])
    return y[chosen], sums


def open_(
    values: Tensor,
    payload: Tensor,
    scales: tuple[Tensor, Tensor, Tensor],
    inner: int,
    shape: tuple[int, ...],
) -> Tensor:
    """bit ? next value · gain[c] + shift[c] : other[c], where `scales` are the three."""
    gain, shift, other = (s.view(1, -1, 1) for s in scales)
    chosen = by_channel(mask.decode(payload, math.prod(shape)), gain.numel(), inner)
    found = int(chosen.sum())
    if found != values.numel():
        raise CorruptStreamError(f"{values.numel()} values for {found} set bits")
    y = torch.zeros(chosen.shape, dtype=values.dtype, device=values.device)
    y[chosen] = values
    return torch.where(chosen, y * gain + shift, other.to(y.dtype)).view(shape)


def add(
    to: Tensor,
    values: Tensor,
    payload: Tensor,
    scales: tuple[Tensor, Tensor],
    inner: int,
) -> None:
    """to += next value · gain[c] + shift[c] where the bit is set; in place."""
    zero = torch.zeros_like(scales[1])
    to.add_(open_(values, payload, (*scales, zero), inner, tuple(to.shape)).to(to.dtype))
