"""A GRU cell in a Python loop over 600 time steps: add the two marked numbers."""

import torch
import torch.nn.functional as F
from log import Log, arguments
from torch import nn


class Adder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.cell = nn.GRUCell(2, width)
        self.out = nn.Linear(width, 1)
        self.width = width

    def forward(self, x):
        hidden = x.new_zeros(x.shape[1], self.width)
        for value in x:
            hidden = self.cell(value, hidden)
        return self.out(hidden).squeeze(1)


def adding_problem(count, length):
    numbers = torch.rand(length, count)
    marks = torch.zeros(length, count)
    marks[torch.randint(length // 2, (count,)), torch.arange(count)] = 1
    marks[torch.randint(length // 2, length, (count,)), torch.arange(count)] = 1
    return torch.stack([numbers, marks], 2), (numbers * marks).sum(0)


def main():
    args = arguments(steps=30)
    model = Adder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    log = Log()
    for _ in range(args.steps):
        x, y = adding_problem(32, 600)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
