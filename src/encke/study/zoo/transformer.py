"""The layer that GPT and ViT are made of: attention, then an MLP, each after a norm."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from encke.errors import UnsupportedError


class Attention(nn.Module):
    """Multi-head self-attention, causal or not."""

    def __init__(self, dim: int, heads: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        if dim % heads:
            raise UnsupportedError(
                f"width {dim} does not divide into {heads} heads; choose a multiple of {heads}"
            )
        self.heads = heads
        self.causal = causal
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, dim))
        return out


class Layer(nn.Module):
    """x + attention(norm(x)), then the same with an MLP four times as wide."""

    def __init__(
        self, dim: int, heads: int, *, causal: bool, dropout: float, eps: float
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim, eps=eps)
        self.attention = Attention(dim, heads, causal=causal, dropout=dropout)
        self.mlp_norm = nn.LayerNorm(dim, eps=eps)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        out: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out
