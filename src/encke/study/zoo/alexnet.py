"""AlexNet in its one-column form (Krizhevsky, "One weird trick", 2014)."""

from __future__ import annotations

from torch import Tensor, nn

from encke.study.zoo.images import image_family


class AlexNet(nn.Module):
    """Five convolutions, three linear layers."""

    def __init__(self, *, classes: int, channels: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.pool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(256 * 6 * 6, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.pool(self.features(images)))
        return scores


def alexnet(
    *, classes: int = 1000, channels: int = 3, hidden: int = 4096, dropout: float = 0.5
) -> AlexNet:
    """For images of 63 pixels or more, 224 are usual; `hidden` is the linear layers' width."""
    return AlexNet(classes=classes, channels=channels, hidden=hidden, dropout=dropout)


FAMILY = image_family("alexnet", "AlexNet, one column", alexnet, size=224)
