"""Small trainings for `true_errors.py`: one function a case, with data made on the spot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Losses = Callable[[torch.Generator], Iterable[Tensor]]


@dataclass
class Case:
    """A model, and what computes the losses of one optimizer step from random numbers.

    losses  each is differentiated by itself, before the next is computed
    """

    model: nn.Module
    losses: Losses
    optimizer: str = "adamw"
    lr: float = 1e-3


def _images(generator: torch.Generator, count: int, size: int, channels: int = 3) -> Any:
    """Pictures of ten kinds, and which they are: a wave each, under noise."""
    labels = torch.randint(0, 10, (count,), generator=generator)
    rows = torch.arange(size) / size
    phase = torch.rand(count, 1, 1, generator=generator)
    angle = labels.view(-1, 1, 1) * 0.6
    wave = torch.sin(
        12 * (torch.cos(angle) * rows.view(1, -1, 1) + torch.sin(angle) * rows + phase)
    )
    noise = torch.randn(count, channels, size, size, generator=generator)
    return wave.unsqueeze(1) + noise, labels


def _classify(model: nn.Module, count: int, size: int, channels: int = 3) -> Losses:
    def losses(generator: torch.Generator) -> Iterable[Tensor]:
        images, labels = _images(generator, count, size, channels)
        found = model(images)
        yield F.cross_entropy(getattr(found, "logits", found), labels)

    return losses


def _tokens(generator: torch.Generator, rows: int, length: int, kinds: int) -> Tensor:
    """Sequences in which the next token mostly follows from the last."""
    tokens = torch.randint(0, kinds, (rows, length), generator=generator)
    follows = torch.rand(rows, length, generator=generator) < 0.7
    for place in range(1, length):
        last = tokens[:, place - 1] * 5 + 3
        tokens[:, place] = torch.where(follows[:, place], last % kinds, tokens[:, place])
    return tokens


def _conv(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


def digits_cnn() -> Case:
    model = nn.Sequential(
        _conv(1, 16),
        _conv(16, 32, 2),
        _conv(32, 32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    data = _digits()

    def losses(generator: torch.Generator) -> Iterable[Tensor]:
        some = torch.randint(0, len(data[1]), (64,), generator=generator)
        yield F.cross_entropy(model(data[0][some]), data[1][some])

    return Case(model, losses, "sgd", 0.05)


def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pictures = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    return F.interpolate(pictures, scale_factor=2.0), torch.tensor(labels)


def resnet() -> Case:
    from encke.study.zoo.resnet_cifar import resnet_cifar

    model = resnet_cifar(depth=14)
    return Case(model, _classify(model, 32, 16), "sgd", 0.05)


def resnet18() -> Case:
    from encke.study.zoo import resnet as zoo

    model = zoo.resnet18(classes=10, width=16)
    return Case(model, _classify(model, 8, 48), "sgd", 0.02)


class _Window(nn.Module):
    """A block of attention in windows, with a table of offsets, as Swin has."""

    def __init__(self, width: int, heads: int, side: int, *, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.offsets = nn.Parameter(torch.zeros(heads, side * side, side * side))
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.side, self.shift = heads, side, shift

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        side = self.side
        t = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2))
        t = t.view(batch, height // side, side, width // side, side, channels)
        t = t.permute(0, 1, 3, 2, 4, 5).reshape(-1, side * side, channels)
        q, k, v = self.qkv(t).view(len(t), -1, 3, self.heads, channels // self.heads).unbind(2)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        weights = (q @ k.transpose(-2, -1)) * (channels // self.heads) ** -0.5 + self.offsets
        t = (weights.softmax(-1) @ v).transpose(1, 2).reshape(len(t), -1, channels)
        t = self.project(t).view(batch, height // side, width // side, side, side, channels)
        t = t.permute(0, 1, 3, 2, 4, 5).reshape(x.shape)
        x = x + torch.roll(t, (self.shift, self.shift), (1, 2))
        out: Tensor = x + self.second(F.gelu(self.first(self.norm2(x))))
        return out


class _Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 2, 2)
        self.blocks = nn.Sequential(*(_Window(32, 4, 4, shift=2 * (i % 2)) for i in range(2)))
        self.merge = nn.Linear(128, 64)
        self.more = nn.Sequential(*(_Window(64, 4, 4, shift=2 * (i % 2)) for i in range(2)))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        t = self.blocks(self.patches(x).permute(0, 2, 3, 1))
        corners = [t[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        t = self.more(self.merge(torch.cat(corners, -1)))
        out: Tensor = self.head(self.norm(t).mean((1, 2)))
        return out


def swin() -> Case:
    model = _Swin()
    return Case(model, _classify(model, 8, 32))


def vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=4,
        num_labels=10,
    )
    model = ViTForImageClassification(config)
    return Case(model, _classify(model, 16, 32))


def gpt() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=256, n_positions=64, n_layer=3, n_embd=64, n_head=4)
    model = GPT2LMHeadModel(config)

    def losses(generator: torch.Generator) -> Iterable[Tensor]:
        ids = _tokens(generator, 8, 64, 256)
        yield model(input_ids=ids, labels=ids).loss

    return Case(model, losses)


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)

    def losses(generator: torch.Generator) -> Iterable[Tensor]:
        ids = _tokens(generator, 8, 64, 256)
        yield model(input_ids=ids, labels=ids).loss

    return Case(model, losses)


def t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=256,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        dropout_rate=0.1,
    )
    model = T5ForConditionalGeneration(config)

    def losses(generator: torch.Generator) -> Iterable[Tensor]:
        ids = _tokens(generator, 8, 48, 256)
        yield model(input_ids=ids, labels=ids.flip(1)).loss

    return Case(model, losses)


def unet() -> Case:
    from encke.study.zoo.unet import unet as build

    model = build(channels=3, outputs=3, width=8, depth=2)

    def losses(generator: torch.Generator) -> Iterable[Tensor]:
        images, _ = _images(generator, 4, 32)
        noisy = images + torch.randn(images.shape, generator=generator)
        yield F.mse_loss(model(noisy), images)

    return Case(model, losses)


class _Mixer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 64), nn.GELU(), nn.Linear(64, tokens))
        self.along = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.along(self.norm2(x))
        return out


def mixer() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 4, 4),
        nn.Flatten(2),
        nn.Unflatten(1, (64,)),
        _Transposed(),
        _Mixer(64, 64),
        _Mixer(64, 64),
        _Mean(),
        nn.Linear(64, 10),
    )
    return Case(model, _classify(model, 16, 32))


class _Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 48)
        self.layers = nn.LSTM(48, 96, num_layers=2, batch_first=True)
        self.head = nn.Linear(96, 128)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.embedding(ids))[0])
        return out


def lstm() -> Case:
    model = _Recurrent()

    def losses(generator: torch.Generator) -> Iterable[Tensor]:
        ids = _tokens(generator, 16, 33, 128)
        yield F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return Case(model, losses, lr=3e-3)


def critic() -> Case:
    """A Wasserstein critic with clipped weights: the gradients of two calls nearly cancel."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 32, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(512, 1),
    )

    def losses(generator: torch.Generator) -> Iterable[Tensor]:
        real, _ = _images(generator, 16, 32)
        fake = torch.randn(real.shape, generator=generator)
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.05, 0.05)
        yield model(fake).mean() - model(real).mean()

    return Case(model, losses, lr=2e-4)


def contrastive() -> Case:
    """Two views of each picture, each through the same network."""
    model = nn.Sequential(
        _conv(3, 16, 2), _conv(16, 32), _conv(32, 32, 2), nn.Flatten(), nn.Linear(1152, 32)
    )

    def losses(generator: torch.Generator) -> Iterable[Tensor]:
        images, _ = _images(generator, 16, 24)
        views = [images + 0.5 * torch.randn(images.shape, generator=generator) for _ in "12"]
        one, two = (F.normalize(model(view), dim=1) for view in views)
        yield F.cross_entropy(one @ two.t() / 0.2, torch.arange(16))

    return Case(model, losses)


def accumulation() -> Case:
    """Three batches a step."""
    blocks = [nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 96), nn.SiLU()) for _ in range(3)]
    model = nn.Sequential(nn.Linear(48, 96), *blocks, nn.Linear(96, 10))
    teacher = torch.randn(48, 10)

    def losses(generator: torch.Generator) -> Iterable[Tensor]:
        for _ in range(3):
            x = torch.randn(256, 48, generator=generator)
            yield F.cross_entropy(model(x), (x @ teacher).argmax(1)) / 3

    return Case(model, losses)


def dcgan() -> Case:
    """A generator and its critic as one step of the generator."""
    model = nn.Sequential(
        nn.ConvTranspose2d(32, 32, 4, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 3, 4, 2, 1),
        nn.Tanh(),
    )
    judge = nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(1024, 1)
    )

    def losses(generator: torch.Generator) -> Iterable[Tensor]:
        fake = model(torch.randn(32, 32, 1, 1, generator=generator))
        yield F.softplus(-judge(fake)).mean()

    return Case(model, losses, lr=2e-4)


CASES: dict[str, Callable[[], Case]] = {
    "digits_cnn": digits_cnn,
    "resnet": resnet,
    "resnet18": resnet18,
    "swin": swin,
    "vit": vit,
    "gpt": gpt,
    "llama": llama,
    "t5": t5,
    "unet": unet,
    "mixer": mixer,
    "lstm": lstm,
    "critic": critic,
    "contrastive": contrastive,
    "accumulation": accumulation,
    "dcgan": dcgan,
}
