"""A small U-Net (Ronneberger et al., 2015) from fields to fields of the same size."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from encke.errors import UnsupportedError
from encke.study.zoo.batch import Batch
from encke.study.zoo.model import Family
from encke.study.zoo.resnet import convolution, initialise
from encke.study.zoo.samples import smooth_fields


def _pair(inward: int, outward: int) -> nn.Sequential:
    return nn.Sequential(
        convolution(inward, outward, 3),
        nn.BatchNorm2d(outward),
        nn.ReLU(inplace=True),
        convolution(outward, outward, 3),
        nn.BatchNorm2d(outward),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """`depth` halvings of the size and back, each level joined to its counterpart."""

    def __init__(self, *, channels: int, outputs: int, width: int, depth: int) -> None:
        super().__init__()
        self.depth = depth
        widths = [width << level for level in range(depth + 1)]
        self.first = _pair(channels, width)
        self.down = nn.ModuleList(_pair(upper, lower) for upper, lower in pairwise(widths))
        self.up = nn.ModuleList(
            _pair(upper + lower, upper) for lower, upper in pairwise(reversed(widths))
        )
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Conv2d(width, outputs, 1)
        initialise(self)

    def forward(self, fields: Tensor) -> Tensor:
        height, width = fields.shape[-2:]
        if height % (1 << self.depth) or width % (1 << self.depth):
            raise UnsupportedError(
                f"got fields of {height}x{width}, both must be multiples of "
                f"{1 << self.depth}; crop them or build the model with a smaller depth"
            )
        x = self.first(fields)
        levels = []
        for down in self.down:
            levels.append(x)
            x = down(self.pool(x))
        for up in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = up(torch.cat([levels.pop(), x], dim=1))
        out: Tensor = self.last(x)
        return out


def unet(*, channels: int = 1, outputs: int = 1, width: int = 16, depth: int = 3) -> UNet:
    """For fields whose height and width are multiples of 2^depth."""
    return UNet(channels=channels, outputs=outputs, width=width, depth=depth)


def _sample(batch: int, generator: Generator, options: Mapping[str, Any]) -> Batch:
    size = (options["rows"], options["columns"])
    fields = smooth_fields((batch, options["channels"], *size), generator)
    return Batch((fields,), smooth_fields((batch, options["outputs"], *size), generator))


FAMILY = Family(
    name="unet",
    about="small U-Net for fields",
    network=unet,
    sample=_sample,
    loss=F.mse_loss,
    shape={"rows": 64, "columns": 128},
)
