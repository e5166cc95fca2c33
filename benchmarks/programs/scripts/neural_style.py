"""Fast neural style: a transformer network under the features of a frozen network."""

import torch
import torch.nn.functional as F
from data import batch, pictures
from log import Log, arguments
from torch import nn


class ConvLayer(nn.Module):
    def __init__(self, inside, outside, size, stride, upsample=None):
        super().__init__()
        self.upsample = upsample
        self.pad = nn.ReflectionPad2d(size // 2)
        self.conv = nn.Conv2d(inside, outside, size, stride)

    def forward(self, x):
        if self.upsample:
            x = F.interpolate(x, mode="nearest", scale_factor=self.upsample)
        return self.conv(self.pad(x))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.in1 = (
            ConvLayer(width, width, 3, 1),
            nn.InstanceNorm2d(width, affine=True),
        )
        self.conv2, self.in2 = (
            ConvLayer(width, width, 3, 1),
            nn.InstanceNorm2d(width, affine=True),
        )

    def forward(self, x):
        return self.in2(self.conv2(F.relu(self.in1(self.conv1(x))))) + x


def transformer():
    return nn.Sequential(
        ConvLayer(3, 16, 9, 1), nn.InstanceNorm2d(16, affine=True), nn.ReLU(),
        ConvLayer(16, 32, 3, 2), nn.InstanceNorm2d(32, affine=True), nn.ReLU(),
        Residual(32), Residual(32),
        ConvLayer(32, 16, 3, 1, upsample=2), nn.InstanceNorm2d(16, affine=True), nn.ReLU(),
        ConvLayer(16, 3, 9, 1),
    )  # fmt: skip


class Features(nn.Module):
    """Stands for the layers of a trained VGG: random, frozen."""

    def __init__(self):
        super().__init__()
        self.slice1 = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU())
        self.slice2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU())
        self.requires_grad_(False)

    def forward(self, x):
        low = self.slice1(x)
        return low, self.slice2(low)


def gram(x):
    flat = x.flatten(2)
    return flat @ flat.transpose(1, 2) / flat.shape[2] / flat.shape[1]


def main():
    args = arguments(steps=30)
    images, _ = pictures(64, 64)
    style = torch.sin(torch.arange(64.0) / 3).expand(1, 3, 64, 64)
    model, features = transformer(), Features()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    grams = [gram(f) for f in features(style)]
    log = Log()
    for step in range(args.steps):
        (x,) = batch(step, 8, images)
        optimizer.zero_grad()
        y = model(x)
        now, then = features(y), features(x)
        content = F.mse_loss(now[1], then[1])
        pairs = zip(map(gram, now), grams, strict=True)
        look = sum(F.mse_loss(a, b.expand_as(a)) for a, b in pairs)
        loss = content + 10 * look
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
