"""A physics-informed network for the heat equation in float64: derivatives of derivatives."""

import math

import torch
from log import Log, arguments
from torch import nn


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def main():
    args = arguments(steps=40)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64),
        nn.Tanh(), nn.Linear(64, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    log = Log()
    for _ in range(args.steps):
        t = torch.rand(4000, 1, requires_grad=True)
        x = torch.rand(4000, 1, requires_grad=True)
        u = model(torch.cat([t, x], 1))
        residual = derivative(u, t) - 0.1 * derivative(derivative(u, x), x)
        start = torch.rand(500, 1)
        at_start = model(torch.cat([torch.zeros_like(start), start], 1))
        edge = torch.rand(500, 1)
        at_left = model(torch.cat([edge, torch.zeros_like(edge)], 1))
        at_right = model(torch.cat([edge, torch.ones_like(edge)], 1))
        loss = residual.square().mean() + at_left.square().mean() + at_right.square().mean()
        loss = loss + (at_start - torch.sin(math.pi * start)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
