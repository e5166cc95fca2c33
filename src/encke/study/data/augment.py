"""Random crops and mirror images, on tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor


def crop_and_flip(images: Tensor, generator: Generator, *, padding: int = 4) -> Tensor:
    """Each image moved by up to `padding` pixels, zeros moving in, and half of them mirrored.

    >>> crop_and_flip(torch.ones(2, 3, 32, 32), Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])
    """
    batch, _, height, width = images.shape
    top = torch.randint(2 * padding + 1, (batch, 1), generator=generator)
    left = torch.randint(2 * padding + 1, (batch, 1), generator=generator)
    mirrored = torch.rand(batch, 1, generator=generator) < 0.5
    across = torch.arange(width)
    rows = top + torch.arange(height)
    columns = left + torch.where(mirrored, across.flip(0), across)
    padded = F.pad(images, (padding,) * 4)
    example = torch.arange(batch)[:, None, None]
    # Index tensors around a slice put the channels last; the result is made dense again.
    moved = padded[example, :, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2).contiguous()
