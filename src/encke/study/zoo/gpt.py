"""A decoder like GPT-2, small enough to learn characters on a few cores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn

from encke.errors import UnsupportedError
from encke.study.zoo.batch import Batch
from encke.study.zoo.model import Family
from encke.study.zoo.samples import class_labels, cross_entropy
from encke.study.zoo.transformer import Layer


class GPT(nn.Module):
    """Tokens (batch, time) to scores of the next token (batch, time, vocab)."""

    def __init__(
        self,
        *,
        vocab: int,
        block_size: int,
        n_layer: int,
        n_head: int,
        n_embd: int,
        dropout: float,
        tie_weights: bool,
    ) -> None:
        super().__init__()
        self.block_size = block_size
        self.token_embedding = nn.Embedding(vocab, n_embd)
        self.position_embedding = nn.Embedding(block_size, n_embd)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            Layer(n_embd, n_head, causal=True, dropout=dropout, eps=1e-5)
            for _ in range(n_layer)
        )
        self.norm = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab, bias=False)
        self._initialise(n_layer)
        if tie_weights:
            self.head.weight = self.token_embedding.weight

    def _initialise(self, n_layer: int) -> None:
        # What ends a residual branch starts smaller, as in GPT-2: 2·n_layer branches add up.
        ends = ("attention.out.weight", "mlp.2.weight")
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                scale = math.sqrt(2 * n_layer) if name.endswith(ends) else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.block_size:
            raise UnsupportedError(
                f"got {length} tokens in a row, block_size is {self.block_size}; cut the "
                "text or build the model with a larger block_size"
            )
        positions = torch.arange(length, device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(self.norm(x))
        return scores


def gpt(
    *,
    vocab: int = 65,
    block_size: int = 256,
    n_layer: int = 6,
    n_head: int = 6,
    n_embd: int = 384,
    dropout: float = 0.0,
    tie_weights: bool = True,
) -> GPT:
    """65 characters are those of Tiny Shakespeare; 50257, 1024, 12, 12, 768 are GPT-2."""
    return GPT(
        vocab=vocab,
        block_size=block_size,
        n_layer=n_layer,
        n_head=n_head,
        n_embd=n_embd,
        dropout=dropout,
        tie_weights=tie_weights,
    )


def _sample(batch: int, generator: Generator, options: Mapping[str, Any]) -> Batch:
    shape = (batch, options["block_size"] + 1)
    tokens = class_labels(shape, options["vocab"], generator)
    return Batch((tokens[:, :-1].contiguous(),), tokens[:, 1:].contiguous())


FAMILY = Family(
    name="gpt",
    about="GPT, a pre-norm decoder",
    network=gpt,
    sample=_sample,
    loss=cross_entropy,
)
