"""Synthetic inputs of real shapes, and the losses that go with them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

#: A target that no loss counts: a node that belongs to another split.
IGNORED = -100


def smooth_fields(shape: tuple[int, int, int, int], generator: Generator) -> Tensor:
    """Noise of all scales, the coarse ones strongest, with mean 0 and deviation 1.

    Neighbouring pixels of a photograph are alike. White noise is not: a network's first
    activations would compress far worse than those of real images.
    """
    batch, channels, height, width = shape
    total = torch.zeros(shape)
    cells = 1
    while cells <= max(height, width):
        coarse = torch.randn(
            (batch, channels, min(cells, height), min(cells, width)), generator=generator
        )
        total += F.interpolate(coarse, (height, width), mode="bilinear") / cells
        cells *= 2
    return (total - total.mean()) / total.std().clamp_min(1e-12)


def class_labels(shape: tuple[int, ...], classes: int, generator: Generator) -> Tensor:
    """Classes, each as likely as the others."""
    return torch.randint(classes, shape, generator=generator)


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Of class scores in the last dimension of `output`, over all targets but `IGNORED`."""
    return F.cross_entropy(output.flatten(0, -2), target.flatten(), ignore_index=IGNORED)
