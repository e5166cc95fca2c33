"""The small ResNets for images of 32x32 pixels (He et al., 2015, section 4.2)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from encke.errors import UnsupportedError
from encke.study.zoo.images import image_family
from encke.study.zoo.resnet import Residual, convolution, initialise, projection


class PadChannels(nn.Module):
    """A shortcut without parameters: every `stride`-th pixel, new channels zero."""

    def __init__(self, added: int, stride: int) -> None:
        super().__init__()
        self.added = added
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.added // 2, self.added - self.added // 2))


class SmallBlock(Residual):
    """Two 3x3 convolutions and a shortcut that is padded or projected."""

    expansion = 1

    def __init__(self, inward: int, width: int, stride: int, shortcut: str) -> None:
        branch = nn.Sequential(
            convolution(inward, width, 3, stride),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            convolution(width, width, 3),
            nn.BatchNorm2d(width),
        )
        if shortcut == "pad" and (stride, inward) != (1, width):
            super().__init__(branch, PadChannels(width - inward, stride))
        else:
            super().__init__(branch, projection(inward, width, stride))


class SmallResNet(nn.Module):
    """A 3x3 stem, three stages of width, 2·width and 4·width channels, one linear layer."""

    def __init__(
        self, *, blocks: int, width: int, classes: int, channels: int, shortcut: str
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(channels, width, 3), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        inward = width
        layers: list[nn.Module] = []
        for stage in range(3):
            for index in range(blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(SmallBlock(inward, width << stage, stride, shortcut))
                inward = width << stage
        self.blocks = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(inward, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        features = self.pool(self.blocks(self.stem(images))).flatten(1)
        scores: Tensor = self.classifier(features)
        return scores


def resnet_cifar(
    *,
    depth: int = 20,
    width: int = 16,
    classes: int = 10,
    channels: int = 3,
    shortcut: str = "pad",
) -> SmallResNet:
    """`depth` is 6n + 2; shortcuts are "pad" as in the paper or "projection"."""
    if depth < 8 or depth % 6 != 2:
        raise UnsupportedError(
            f"depth is {depth}, allowed are 6n + 2: 8, 14, 20, 32, 44, 56, 110"
        )
    if shortcut not in ("pad", "projection"):
        raise UnsupportedError(f"shortcut is {shortcut!r}, allowed are 'pad' and 'projection'")
    return SmallResNet(
        blocks=(depth - 2) // 6,
        width=width,
        classes=classes,
        channels=channels,
        shortcut=shortcut,
    )


FAMILY = image_family("resnet_cifar", "ResNet-20 and its like for 32x32", resnet_cifar, size=32)
