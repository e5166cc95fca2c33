"""`nn.MultiheadAttention`, taken apart far enough to see its four products.

Its forward gives torch one function with all weights, so no hook sees what goes into the
output projection or what comes out of the others. While K-FAC watches, the module computes its
projections itself and gives the function identity matrices in their place: multiplying by one
and adding zeros changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Called with part, input and output of each projection; None while nothing is to be seen.
Watcher = Callable[[str, Tensor, Tensor], None]
#: Asked at each forward for the watcher.
_WATCHED: WeakKeyDictionary[nn.Module, Callable[[], Watcher | None]] = WeakKeyDictionary()


class WatchedAttention(nn.MultiheadAttention):
    """The class that a watched module has until `release`; copies of it are not watched."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        ask = _WATCHED.get(self)
        watcher = ask() if ask is not None else None
        options: dict[str, Any] = {
            "key_padding_mask": key_padding_mask,
            "need_weights": need_weights,
            "attn_mask": attn_mask,
            "average_attn_weights": average_attn_weights,
            "is_causal": is_causal,
        }
        if watcher is None:
            return super().forward(query, key, value, **options)
        swap = self.batch_first and query.dim() == 3
        projected: list[Tensor] = []
        for number, (part, x) in enumerate((("query", query), ("key", key), ("value", value))):
            weight, bias = self._projection(number)
            y = F.linear(x, weight, bias)
            watcher(part, x, y)
            projected.append(y.transpose(0, 1) if swap else y)
        identity = torch.eye(self.embed_dim, dtype=query.dtype, device=query.device)
        mixed, weights = F.multi_head_attention_forward(
            projected[0],
            projected[1],
            projected[2],
            self.embed_dim,
            self.num_heads,
            None,
            None,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            identity,
            None,
            training=self.training,
            use_separate_proj_weight=True,
            q_proj_weight=identity,
            k_proj_weight=identity,
            v_proj_weight=identity,
            **options,
        )
        mixed = mixed.transpose(0, 1) if swap else mixed
        result = F.linear(mixed, self.out_proj.weight, self.out_proj.bias)
        watcher("out", mixed, result)
        return result, weights

    def _projection(self, number: int) -> tuple[Tensor, Tensor | None]:
        rows = slice(number * self.embed_dim, (number + 1) * self.embed_dim)
        bias = self.in_proj_bias[rows] if self.in_proj_bias is not None else None
        if self.in_proj_weight is not None:
            return self.in_proj_weight[rows], bias
        weight = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[number]
        assert weight is not None  # nn.MultiheadAttention has either the packed or all three
        return weight, bias


def watch(module: nn.MultiheadAttention, ask: Callable[[], Watcher | None]) -> None:
    """From now on `ask()` says at each forward who is told about the projections."""
    module.__class__ = WatchedAttention
    _WATCHED[module] = ask


def release(module: nn.MultiheadAttention) -> None:
    """The module is a plain one again."""
    module.__class__ = nn.MultiheadAttention
    _WATCHED.pop(module, None)
