"""MobileNetV2-, EfficientNet- and ConvNeXt-like networks, written by hand."""

import torch
import torch.nn.functional as F
from data import batch, pictures
from log import Log, arguments
from torch import nn


class SqueezeExcite(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.reduce = nn.Conv2d(width, width // 4, 1)
        self.expand = nn.Conv2d(width // 4, width, 1)

    def forward(self, x):
        scale = F.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(scale))))


class InvertedResidual(nn.Module):
    def __init__(self, inside, outside, stride, activation, squeeze):
        super().__init__()
        wide = 4 * inside
        self.body = nn.Sequential(
            nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), activation(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide), activation(),
            SqueezeExcite(wide) if squeeze else nn.Identity(),
            nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.residual = stride == 1 and inside == outside

    def forward(self, x):
        return x + self.body(x) if self.residual else self.body(x)


def inverted(activation, squeeze):
    layers = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), activation()]
    for inside, outside, stride in ((16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1)):
        layers.append(InvertedResidual(inside, outside, stride, activation, squeeze))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(40, 10)]
    return nn.Sequential(*layers, *head)


class ChannelsLastNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.expand = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(1e-1 * torch.ones(width))

    def forward(self, x):
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.shrink(F.gelu(self.expand(self.norm(y))))
        return x + (self.gamma * y).permute(0, 3, 1, 2)


def convnext():
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 4), ChannelsLastNorm(32), ConvNeXtBlock(32), ConvNeXtBlock(32),
        ChannelsLastNorm(32), nn.Conv2d(32, 64, 2, 2), ConvNeXtBlock(64), ConvNeXtBlock(64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10),
    )  # fmt: skip


MODELS = {
    "mobilenet": lambda: inverted(nn.ReLU6, False),
    "efficientnet": lambda: inverted(nn.SiLU, True),
    "convnext": convnext,
}


def main():
    args = arguments(steps=32, names=tuple(MODELS))
    images, labels = pictures(512, 64)
    model = MODELS[args.name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    log = Log()
    for step in range(args.steps):
        x, y = batch(step, 24, images, labels)
        loss = criterion(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
