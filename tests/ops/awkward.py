"""Tensors that take `group` through every kind of group."""

from __future__ import annotations

import math

import torch


def noise(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)


def awkward(dtype: torch.dtype) -> torch.Tensor:
    """Groups of every kind: plain, equal, zeros of both signs, not finite, tiny, huge."""
    facts = torch.finfo(dtype)
    x = noise(256 * 9 + 100, dtype)
    x[256:512] = 5.0
    x[512:768] = 0.0
    x[512:768:3] = -0.0
    x[768] = math.nan
    x[1025] = -math.inf
    x[1280:1536] *= facts.tiny * 2
    x[1536:1792] = x[1536:1792].sign() * facts.max
    x[1792:2048] = facts.max
    x[1800] = facts.max * (1 - 2 * facts.eps)
    return x
