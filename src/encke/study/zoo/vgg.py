"""VGG-16 (Simonyan and Zisserman, 2014), configuration D."""

from __future__ import annotations

from torch import Tensor, nn

from encke.errors import UnsupportedError
from encke.study.zoo.images import image_family

#: Channels of the convolutions of each stage, in widths; a max-pool ends it.
_STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))


class VGG(nn.Module):
    """Thirteen 3x3 convolutions, three linear layers."""

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        hidden: int,
        batch_norm: bool,
        dropout: float,
        width: int,
        stages: int,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage in _STAGES[:stages]:
            for outward in (width * factor for factor in stage):
                layers.append(nn.Conv2d(channels, outward, 3, padding=1))
                if batch_norm:
                    layers.append(nn.BatchNorm2d(outward))
                layers.append(nn.ReLU(inplace=True))
                channels = outward
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * 7 * 7, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.pool(self.features(images)))
        return scores


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def vgg16(
    *,
    classes: int = 1000,
    channels: int = 3,
    hidden: int = 4096,
    batch_norm: bool = False,
    dropout: float = 0.5,
    width: int = 64,
    stages: int = 5,
) -> VGG:
    """For images of 2^stages pixels or more. The original: 224 pixels and no batch norm.

    Less `width` and fewer `stages` make it small.
    """
    if not 1 <= stages <= len(_STAGES):
        raise UnsupportedError(f"stages is {stages}, allowed are 1 to {len(_STAGES)}")
    return VGG(
        classes=classes,
        channels=channels,
        hidden=hidden,
        batch_norm=batch_norm,
        dropout=dropout,
        width=width,
        stages=stages,
    )


FAMILY = image_family("vgg16", "VGG-16, without batch norm unless asked for", vgg16, size=224)
