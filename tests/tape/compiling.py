"""A backend for torch.compile that runs traced graphs op by op, as the tape rewrote them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop

from encke.tape.compiled import partition


@functools.cache
def backend(*, decompose: bool = True) -> Callable[..., Any]:
    """AOTAutograd with the tape's partitioner, and Inductor's decompositions if asked for."""
    table: dict[Any, Any] = {}
    if decompose:
        from torch._inductor.compile_fx import select_decomp_table

        table = select_decomp_table()
    return aot_autograd(
        fw_compiler=boxed_nop,
        bw_compiler=boxed_nop,
        partition_fn=functools.partial(partition, compiler="inductor"),
        decompositions=table,
        keep_inference_input_mutations=True,
    )


def compiled(model: nn.Module, *, decompose: bool = True, **options: Any) -> nn.Module:
    found: nn.Module = torch.compile(
        model, backend=backend(decompose=decompose), **{"fullgraph": True, **options}
    )
    return found


class Attention(nn.Module):
    """A pre-norm transformer layer, with dropout."""

    def __init__(self, width: int = 32, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        q, k, v = (
            part.view(n, t, self.heads, -1).transpose(1, 2)
            for part in self.mix(self.before(x)).split(c, dim=2)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(n, t, c)))
        return x + self.dropout(self.narrow(nn.functional.gelu(self.wide(self.after(x)))))


def transformer(*, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(50, 32),
        Attention(dropout=dropout),
        Attention(dropout=dropout),
        nn.LayerNorm(32),
        nn.Linear(32, 50),
    )
