"""ResNet-18 and ResNet-50 (He et al., 2015), stride in the bottleneck's 3x3 convolution."""

from __future__ import annotations

from torch import Tensor, nn

from encke.study.zoo.images import image_family


def convolution(inward: int, outward: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Without bias, because a batch norm follows; keeps the size at stride 1."""
    return nn.Conv2d(inward, outward, kernel, stride=stride, padding=kernel // 2, bias=False)


def initialise(network: nn.Module) -> None:
    """Normal weights that keep the variance of the gradient, batch norms as the identity."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


class Residual(nn.Module):
    """A branch of convolutions, added to its input or to a projection of it."""

    expansion: int

    def __init__(self, branch: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        y += self.shortcut(x)
        out: Tensor = self.relu(y)
        return out


def projection(inward: int, outward: int, stride: int) -> nn.Module:
    """The identity where shapes allow it, else a 1x1 convolution with batch norm."""
    if stride == 1 and inward == outward:
        return nn.Identity()
    return nn.Sequential(convolution(inward, outward, 1, stride), nn.BatchNorm2d(outward))


class BasicBlock(Residual):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inward: int, width: int, stride: int) -> None:
        branch = nn.Sequential(
            convolution(inward, width, 3, stride),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            convolution(width, width, 3),
            nn.BatchNorm2d(width),
        )
        super().__init__(branch, projection(inward, width, stride))


class Bottleneck(Residual):
    """1x1, 3x3 and 1x1 convolutions; the last widens fourfold."""

    expansion = 4

    def __init__(self, inward: int, width: int, stride: int) -> None:
        outward = self.expansion * width
        branch = nn.Sequential(
            convolution(inward, width, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            convolution(width, width, 3, stride),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            convolution(width, outward, 1),
            nn.BatchNorm2d(outward),
        )
        super().__init__(branch, projection(inward, outward, stride))


class ResNet(nn.Module):
    """A 7x7 stem, four stages of residual blocks, one linear layer."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        classes: int,
        channels: int,
        width: int,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(channels, width, 7, 2),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        inward = width
        stages = []
        for stage, depth in enumerate(depths):
            blocks: list[nn.Module] = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(inward, width << stage, stride))
                inward = block.expansion * (width << stage)
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(inward, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        features = self.pool(self.stages(self.stem(images))).flatten(1)
        scores: Tensor = self.classifier(features)
        return scores


def resnet18(*, classes: int = 1000, channels: int = 3, width: int = 64) -> ResNet:
    """For images of 224 pixels; others from 32 on work too."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes=classes, channels=channels, width=width)


def resnet50(*, classes: int = 1000, channels: int = 3, width: int = 64) -> ResNet:
    """For images of 224 pixels; others from 32 on work too."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes=classes, channels=channels, width=width)


RESNET18 = image_family("resnet18", "ResNet-18 for large images", resnet18, size=224)
RESNET50 = image_family("resnet50", "ResNet-50 for large images", resnet50, size=224)
