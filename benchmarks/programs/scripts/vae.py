"""A convolutional variational autoencoder of handwritten digits."""

import torch
import torch.nn.functional as F
from data import batch, digits
from log import Log, arguments
from torch import nn, optim


class VAE(nn.Module):
    def __init__(self, latent=20):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 64, 400), nn.ReLU(),
        )  # fmt: skip
        self.mean, self.logvar = nn.Linear(400, latent), nn.Linear(400, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, 64 * 64), nn.ReLU(), nn.Unflatten(1, (64, 8, 8)),
            nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def reparameterize(self, mean, logvar):
        std = torch.exp(0.5 * logvar)
        return mean + torch.randn_like(std) * std

    def forward(self, x):
        hidden = self.encoder(x)
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        return self.decoder(self.reparameterize(mean, logvar)), mean, logvar


def loss_function(recon, x, mean, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())


def main():
    args = arguments(steps=60)
    images, _ = digits(32)
    images = (images + 1) / 2
    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    log = Log()
    for step in range(args.steps):
        (x,) = batch(step, 128, images)
        optimizer.zero_grad()
        recon, mean, logvar = model(x)
        loss = loss_function(recon, x, mean, logvar)
        loss.backward()
        optimizer.step()
        log.step(loss.item() / len(x))
    log.end()


if __name__ == "__main__":
    main()
