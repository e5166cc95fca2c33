"""The two small networks whose tensors are measured, and the training that shapes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut around them."""

    def __init__(self, inward: int, outward: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inward, outward, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outward)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outward, outward, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outward)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inward != outward:
            self.shortcut = nn.Conv2d(inward, outward, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.norm1(self.conv1(x)))
        return self.relu2(self.norm2(self.conv2(y)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """A residual network for 32x32 pictures: three stages of 32, 64 and 128 channels."""

    def __init__(self, *, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()
        )
        self.stage1 = ResidualBlock(32, 32, stride=1)
        self.stage2 = ResidualBlock(32, 64, stride=2)
        self.stage3 = ResidualBlock(64, 128, stride=2)
        self.head = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stage3(self.stage2(self.stage1(self.stem(x))))
        return self.head(y.mean(dim=(2, 3)))


class Attention(nn.Module):
    """Causal self-attention that keeps its q, k, v and probabilities for whoever looks."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.seen: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        probabilities = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
        self.seen = {"q": q, "k": k, "v": v, "probabilities": probabilities}
        return self.out((probabilities @ v).transpose(1, 2).reshape(batch, length, width))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class CharacterGPT(nn.Module):
    """A transformer that predicts the next character."""

    def __init__(
        self, *, alphabet: int, length: int, width: int = 128, layers: int = 4
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(alphabet, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads=4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.token(codes) + self.position(torch.arange(codes.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def pictures(data: Path | None, *, count: int) -> tuple[Tensor, Tensor]:
    """`count` normalised 32x32 pictures and labels: CIFAR-10 if given, else digits."""
    if data is not None:
        import io

        from PIL import Image

        with np.load(data / "cifar10_jpeg.npz") as file:
            jpeg, offsets = file["train_jpeg"], file["train_offsets"]
            labels = file["train_labels"][:count]
        decoded = np.stack(
            [
                np.asarray(Image.open(io.BytesIO(jpeg[offsets[i] : offsets[i + 1]].tobytes())))
                for i in range(count)
            ]
        )
        images = torch.from_numpy(decoded).permute(0, 3, 1, 2).contiguous().float() / 255
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        picked = np.arange(count) % len(digits.target)
        small = torch.from_numpy(digits.images[picked]).float().unsqueeze(1) / 16
        images = F.interpolate(small, size=(32, 32), mode="bilinear", align_corners=False)
        labels = digits.target[picked]
    mean = images.mean(dim=(0, 2, 3), keepdim=True)
    deviation = images.std(dim=(0, 2, 3), keepdim=True)
    return (images - mean) / deviation, torch.from_numpy(labels.astype(np.int64))


def text(data: Path | None) -> tuple[Tensor, int]:
    """Character codes of a text and the size of its alphabet.

    Shakespeare if given, else sources of the Python standard library, which are
    wherever Python is.
    """
    if data is not None:
        content = (data / "tinyshakespeare.txt").read_text(encoding="utf-8")
    else:
        import argparse
        import ast
        import inspect
        import typing

        modules = (argparse, ast, inspect, typing)
        content = "".join(inspect.getsource(module) for module in modules)
    alphabet = sorted(set(content))
    place = {character: code for code, character in enumerate(alphabet)}
    return torch.tensor([place[character] for character in content]), len(alphabet)


def windows(codes: Tensor, *, length: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Endless batches of `length` + 1 consecutive characters."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(codes) - length - 1, (batch,), generator=generator)
        yield torch.stack([codes[start : start + length + 1] for start in starts.tolist()])


def train_resnet(
    data: Path | None, *, steps: int, seed: int = 0
) -> tuple[SmallResNet, Tensor, Tensor]:
    """A trained network, a batch of 64 pictures and their labels."""
    torch.manual_seed(seed)
    images, labels = pictures(data, count=4096)
    network = SmallResNet(channels=images.shape[1], classes=10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        picked = torch.randint(len(images), (32,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(network(images[picked]), labels[picked]).backward()
        optimizer.step()
    optimizer.zero_grad()
    return network, images[:64], labels[:64]


def train_gpt(data: Path | None, *, steps: int, seed: int = 0) -> tuple[CharacterGPT, Tensor]:
    """A trained transformer and a batch of 32 windows of 129 characters."""
    torch.manual_seed(seed)
    codes, alphabet = text(data)
    network = CharacterGPT(alphabet=alphabet, length=128)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    batches = windows(codes, length=128, batch=16, seed=seed)
    for _ in range(steps):
        batch = next(batches)
        optimizer.zero_grad()
        logits = network(batch[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
    optimizer.zero_grad()
    return network, next(windows(codes, length=128, batch=32, seed=seed + 1))
