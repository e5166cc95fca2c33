"""A U-Net with GroupNorm and SiLU that segments discs in noisy images."""

import torch
import torch.nn.functional as F
from data import batch
from log import Log, arguments
from torch import nn


class DoubleConv(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, outside), nn.Conv2d(inside, outside, 3, 1, 1)
        self.norm2, self.conv2 = nn.GroupNorm(4, outside), nn.Conv2d(outside, outside, 3, 1, 1)
        self.act = nn.SiLU()

    def forward(self, x):
        x = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    def __init__(self, widths=(12, 24, 48)):
        super().__init__()
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        self.merge = nn.ModuleList()
        inside = 1
        for width in widths:
            self.down.append(DoubleConv(inside, width))
            inside = width
        for width in reversed(widths[:-1]):
            self.up.append(nn.ConvTranspose2d(inside, width, 2, 2))
            self.merge.append(DoubleConv(2 * width, width))
            inside = width
        self.head = nn.Conv2d(inside, 1, 1)

    def forward(self, x):
        skips = []
        for index, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if index else x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], 1))
        return self.head(x)


def discs(count, size):
    """Images with three discs each, and the masks of the discs."""
    grid = torch.stack(torch.meshgrid(*[torch.arange(size)] * 2, indexing="ij")).float()
    centres = torch.rand(count, 3, 2, 1, 1) * size
    radius = 3 + torch.rand(count, 3, 1, 1) * size / 6
    masks = ((grid - centres).norm(dim=2) < radius).any(1, keepdim=True).float()
    return masks + 0.6 * torch.randn_like(masks), masks


def main():
    args = arguments(steps=32)
    images, masks = discs(128, 64)
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    log = Log()
    for step in range(args.steps):
        x, y = batch(step, 16, images, masks)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
