"""A normalizing flow (affine couplings): the loss is `-flow.log_prob(x).mean()`."""

import math

import torch
from log import Log, arguments
from torch import nn


class Coupling(nn.Module):
    def __init__(self, size, width, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(
            nn.Linear(size // 2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, size),
        )  # fmt: skip

    def inverse(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        scale, shift = self.net(a).chunk(2, 1)
        scale = torch.tanh(scale)
        b = (b - shift) * torch.exp(-scale)
        return torch.cat([b, a] if self.flip else [a, b], 1), -scale.sum(1)


class Flow(nn.Module):
    def __init__(self, size=8, width=128, layers=4):
        super().__init__()
        self.size = size
        self.layers = nn.ModuleList(Coupling(size, width, i % 2 == 1) for i in range(layers))

    def log_prob(self, x):
        total = torch.zeros(len(x))
        for layer in self.layers:
            x, change = layer.inverse(x)
            total = total + change
        return total - 0.5 * x.square().sum(1) - 0.5 * self.size * math.log(2 * math.pi)


def samples(count):
    """Points on noisy circles, in four planes."""
    angle = 2 * math.pi * torch.rand(count, 4)
    radius = 1 + 0.1 * torch.randn(count, 4)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)


def main():
    args = arguments(steps=60)
    flow = Flow()
    optimizer = torch.optim.Adam(flow.parameters(), lr=2e-3)
    log = Log()
    for _ in range(args.steps):
        loss = -flow.log_prob(samples(4096)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
