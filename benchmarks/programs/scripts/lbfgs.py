"""A small network fitted to a surface by LBFGS with a strong Wolfe line search."""

import torch
import torch.nn.functional as F
from log import Log, arguments
from torch import nn


def main():
    args = arguments(steps=30)
    x = 4 * torch.rand(4096, 2) - 2
    y = torch.sin(2 * x[:, :1]) * torch.cos(x[:, 1:]) + 0.1 * x[:, :1] ** 2
    model = nn.Sequential(
        nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1)
    )
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    log = Log()
    for _ in range(args.steps):
        log.step(optimizer.step(closure).item())
    log.end()


if __name__ == "__main__":
    main()
