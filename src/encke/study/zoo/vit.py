"""ViT-Tiny (Dosovitskiy et al., 2020; the width of DeiT-Tiny)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from encke.errors import UnsupportedError
from encke.study.zoo.images import image_family
from encke.study.zoo.transformer import Layer


class VisionTransformer(nn.Module):
    """Patches and a class token through an encoder; the class token is classified."""

    def __init__(
        self,
        *,
        size: int,
        patch: int,
        dim: int,
        depth: int,
        heads: int,
        classes: int,
        channels: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.size = size
        self.patches = nn.Conv2d(channels, dim, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, dim))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            Layer(dim, heads, causal=False, dropout=dropout, eps=1e-6) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.classifier = nn.Linear(dim, classes)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.trunc_normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (self.size, self.size):
            raise UnsupportedError(
                f"got images of {tuple(images.shape[-2:])}, this network was built for "
                f"size={self.size}"
            )
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.dropout(x + self.positions)
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.classifier(self.norm(x)[:, 0])
        return scores


def vit_tiny(
    *,
    size: int = 224,
    patch: int = 16,
    dim: int = 192,
    depth: int = 12,
    heads: int = 3,
    classes: int = 1000,
    channels: int = 3,
    dropout: float = 0.0,
) -> VisionTransformer:
    """For square images of `size` pixels in patches of `patch`; 32 and 4 suit CIFAR-10."""
    if size % patch:
        raise UnsupportedError(
            f"size {size} does not divide into patches of {patch}; choose a divisor"
        )
    return VisionTransformer(
        size=size,
        patch=patch,
        dim=dim,
        depth=depth,
        heads=heads,
        classes=classes,
        channels=channels,
        dropout=dropout,
    )


FAMILY = image_family("vit_tiny", "ViT-Tiny, an image encoder", vit_tiny)
