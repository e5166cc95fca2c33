"""First moments: kept relative to the root of the second moment beside them.

An optimizer takes steps of m/√v, so an error of m is worth what it is of √v.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.store.blobs import LARGEST_CODE, BlobWriter, chunks_of, joined

_BLOCK = 1 << 17


def encode(m: Tensor, v: Tensor, ratio: float, sink: BlobWriter) -> dict[str, Any] | None:
    """The entry of m, given v as it will be decoded.

    None where m is not finite, not zero where v is, or many roots of v.
    """
    if m.shape != v.shape or not m.is_floating_point() or m.dtype == torch.float64:
        return None
    step = 2.0 * ratio * (1.0 - 1e-5)
    fits = True

    def codes() -> Iterator[Tensor]:
        nonlocal fits
        for part, root in zip(_blocks(m), _blocks(v), strict=True):
            out = torch.div(part, torch.sqrt(root).mul_(step)).round_()
            low, high = torch.aminmax(out)
            if not (float(low) > -LARGEST_CODE and float(high) < LARGEST_CODE):
                out.masked_fill_((part == 0) & (root == 0), 0.0)
                fits = fits and bool((out.abs() < LARGEST_CODE).all())
                out.nan_to_num_(0.0).clamp_(-LARGEST_CODE, LARGEST_CODE)
            yield out

    # Written at once, in the rare case for nothing: a check first would read all of it twice.
    blob = sink.codes(joined(codes()), m.numel())
    return {"how": "root", "step": step, "ratio": ratio, "blob": blob} if fits else None


def _blocks(x: Tensor) -> Iterator[Tensor]:
    """Values in order, few enough at a time to stay in a cache."""
    for chunk in chunks_of(x, dtype=torch.float32):
        for start in range(0, chunk.numel(), _BLOCK):
            yield chunk[start : start + _BLOCK]


def decode(entry: dict[str, Any], codes: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor of an entry, flat."""
    step = entry.get("step")
    if not isinstance(step, float) or not math.isfinite(step) or not v.is_floating_point():
        raise CorruptStreamError("a first moment has no step, or no second moment beside it")
    out = torch.empty(codes.numel(), dtype=dtype)
    at = 0
    for code, second in zip(_blocks(codes), _blocks(v), strict=True):
        out[at : at + code.numel()].copy_(torch.sqrt(second).mul_(step).mul_(code))
        at += code.numel()
    return out
