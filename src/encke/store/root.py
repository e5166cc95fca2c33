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
from encke.store.blobs import LARGEST_CODE, BlobWriter, chunks_of


def takes(m: Tensor, v: Tensor, ratio: float) -> bool:
    """Whether m can be kept so: finite, zero where v is, and never many roots of v."""
    if m.shape != v.shape or not m.is_floating_point() or m.dtype == torch.float64:
        return False
    reach = 2.0 * ratio * (LARGEST_CODE - 1)
    return all(
        bool((part.abs() <= reach * root).all())
        for part, root in zip(chunks_of(m), _roots(v), strict=True)
    )


def _roots(v: Tensor) -> Iterator[Tensor]:
    return (torch.sqrt(part) for part in chunks_of(v, dtype=torch.float32))


def encode(m: Tensor, v: Tensor, ratio: float, sink: BlobWriter) -> dict[str, Any]:
    """The entry of m, given v as it will be decoded."""
    step = 2.0 * ratio * (1.0 - 1e-5)
    codes = (
        torch.where(root > 0, torch.round(part / (root * step)), 0.0)
        for part, root in zip(chunks_of(m, dtype=torch.float32), _roots(v), strict=True)
    )
    return {
        "how": "root",
        "step": step,
        "ratio": ratio,
        "blob": sink.codes(codes, m.numel()),
    }


def decode(entry: dict[str, Any], codes: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor of an entry, flat."""
    step = entry.get("step")
    if not isinstance(step, float) or not math.isfinite(step) or not v.is_floating_point():
        raise CorruptStreamError("a first moment has no step, or no second moment beside it")
    return (codes * (torch.sqrt(v.reshape(-1).to(torch.float32)) * step)).to(dtype)
