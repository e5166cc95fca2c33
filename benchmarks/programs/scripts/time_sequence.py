"""Sine waves continued by two LSTM cells in float64, trained by LBFGS on all the data."""

import numpy as np
import torch
from log import Log, arguments
from torch import nn, optim


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, 51)
        self.lstm2 = nn.LSTMCell(51, 51)
        self.linear = nn.Linear(51, 1)

    def forward(self, waves):
        count = waves.size(0)
        h1, c1, h2, c2 = (torch.zeros(count, 51, dtype=torch.double) for _ in range(4))
        outputs = []
        for value in waves.split(1, dim=1):
            h1, c1 = self.lstm1(value, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


def main():
    args = arguments(steps=30)
    rng = np.random.default_rng(args.seed)
    start = rng.integers(-80, 80, (48, 1))
    waves = torch.from_numpy(np.sin((np.arange(100)[None] + start) / 20.0))
    model = Sequence().double()
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(model.parameters(), lr=0.8, max_iter=1, history_size=10)
    log = Log()
    for _ in range(args.steps):

        def closure():
            optimizer.zero_grad()
            loss = criterion(model(waves[:, :-1]), waves[:, 1:])
            loss.backward()
            return loss

        log.step(optimizer.step(closure).item())
    log.end()


if __name__ == "__main__":
    main()
