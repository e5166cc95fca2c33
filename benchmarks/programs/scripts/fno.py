"""A Fourier neural operator that learns to smooth and shift a random field."""

import torch
import torch.nn.functional as F
from data import batch
from log import Log, arguments
from torch import nn


class SpectralConv2d(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        shape = (width, width, modes, modes)
        self.low = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / width**2)
        self.high = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / width**2)

    def forward(self, x):
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        out[..., :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[..., :m, :m], self.low)
        out[..., -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[..., -m:, :m], self.high)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class FNO2d(nn.Module):
    def __init__(self, width=20, modes=8, layers=4):
        super().__init__()
        self.lift = nn.Conv2d(1, width, 1)
        self.spectral = nn.ModuleList(SpectralConv2d(width, modes) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))
        self.project = nn.Sequential(nn.Conv2d(width, 64, 1), nn.GELU(), nn.Conv2d(64, 1, 1))

    def forward(self, x):
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = F.gelu(spectral(x) + local(x))
        return self.project(x)


def main():
    args = arguments(steps=32)
    fields = F.interpolate(torch.randn(128, 1, 12, 12), size=48, mode="bicubic")
    target = F.avg_pool2d(fields.roll((3, 5), (2, 3)), 7, 1, 3).tanh()
    model = FNO2d()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    log = Log()
    for step in range(args.steps):
        x, y = batch(step, 8, fields, target)
        optimizer.zero_grad()
        error = (model(x) - y).flatten(1).norm(dim=1)
        loss = (error / y.flatten(1).norm(dim=1)).mean()
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
