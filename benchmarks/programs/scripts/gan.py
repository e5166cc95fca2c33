"""Generative adversarial networks of digits: DCGAN, WGAN (clipped weights), WGAN-GP."""

import torch
import torch.nn.functional as F
from data import batch, digits
from log import Log, arguments
from torch import nn

LATENT = 64


def generator():
    return nn.Sequential(
        nn.ConvTranspose2d(LATENT, 128, 4), nn.BatchNorm2d(128), nn.ReLU(True),
        nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU(True),
        nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(True),
        nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def critic(norm):
    layers, inside = [], 1
    for width in (32, 64, 128):
        layers.append(nn.Conv2d(inside, width, 4, 2, 1))
        if norm and inside > 1:
            layers.append(nn.BatchNorm2d(width))
        layers.append(nn.LeakyReLU(0.2, inplace=True))
        inside = width
    return nn.Sequential(*layers, nn.Conv2d(inside, 1, 4), nn.Flatten(0))


def gradient_penalty(d, real, fake):
    share = torch.rand(len(real), 1, 1, 1)
    mixed = (share * real + (1 - share) * fake).requires_grad_(True)
    (gradient,) = torch.autograd.grad(d(mixed).sum(), mixed, create_graph=True)
    return 10 * ((gradient.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


def main():
    args = arguments(steps=40, names=("dcgan", "wgan", "wgan_gp"))
    images, _ = digits(32)
    g, d = generator(), critic(norm=args.name != "wgan_gp")
    if args.name == "wgan":
        optimizer_g = torch.optim.RMSprop(g.parameters(), lr=2e-4)
        optimizer_d = torch.optim.RMSprop(d.parameters(), lr=2e-4)
    else:
        optimizer_g = torch.optim.Adam(g.parameters(), lr=5e-4, betas=(0.5, 0.9))
        optimizer_d = torch.optim.Adam(d.parameters(), lr=5e-4, betas=(0.5, 0.9))
    log = Log()
    for step in range(args.steps):
        (real,) = batch(step, 64, images)
        fake = g(torch.randn(len(real), LATENT, 1, 1))

        optimizer_d.zero_grad()
        if args.name == "dcgan":
            ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
            loss_d = F.binary_cross_entropy_with_logits(d(real), ones)
            loss_d.backward()
            loss_fake = F.binary_cross_entropy_with_logits(d(fake.detach()), zeros)
            loss_fake.backward()
            loss_d = loss_d + loss_fake
        else:
            loss_d = d(fake.detach()).mean() - d(real).mean()
            if args.name == "wgan_gp":
                loss_d = loss_d + gradient_penalty(d, real, fake.detach())
            loss_d.backward()
        optimizer_d.step()
        if args.name == "wgan":
            for parameter in d.parameters():
                parameter.data.clamp_(-0.03, 0.03)

        optimizer_g.zero_grad()
        if args.name == "dcgan":
            loss_g = F.binary_cross_entropy_with_logits(d(fake), ones)
        else:
            loss_g = -d(fake).mean()
        loss_g.backward()
        optimizer_g.step()
        log.step(loss_d.item())
    log.end()


if __name__ == "__main__":
    main()
