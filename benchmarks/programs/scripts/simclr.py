"""SimCLR: two noisy, shifted views of an image lie close together, all others far apart."""

import torch
import torch.nn.functional as F
from data import batch, pictures
from log import Log, arguments
from resnet import ResNet
from torch import nn


def view(x):
    shift = torch.randint(-4, 5, (2,)).tolist()
    x = torch.roll(x, shift, (2, 3))
    if torch.rand(()) < 0.5:
        x = x.flip(3)
    return x * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1)) + 0.2 * torch.randn_like(x)


def nt_xent(a, b, temperature=0.5):
    z = F.normalize(torch.cat([a, b]), dim=1)
    similarity = z @ z.T / temperature
    similarity.fill_diagonal_(float("-inf"))
    n = len(a)
    return F.cross_entropy(similarity, torch.cat([torch.arange(n) + n, torch.arange(n)]))


class SimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = ResNet(width=16, depth=(1, 1, 1), classes=128)
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        return self.projector(self.encoder(x))


def main():
    args = arguments(steps=32)
    images, _ = pictures(512, 32)
    model = SimCLR()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
    log = Log()
    for step in range(args.steps):
        (x,) = batch(step, 32, images)
        loss = nt_xent(model(view(x)), model(view(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
