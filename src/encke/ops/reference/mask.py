"""`mask`: one bit a value (docs/format.md, section 10)."""

from __future__ import annotations

import torch
from torch import Tensor

from encke.errors import CorruptStreamError


def encode(x: Tensor) -> Tensor:
    """The payload of the truth values `x`; any byte but zero is true."""
    truth = x.reshape(-1).view(torch.uint8) != 0
    padded = torch.zeros(-(-truth.numel() // 8) * 8, dtype=torch.uint8, device=x.device)
    padded[: truth.numel()] = truth
    return (padded.view(-1, 8) << _places(x.device)).sum(1, dtype=torch.uint8)


def decode(payload: Tensor, count: int) -> Tensor:
    """`count` truth values, or `CorruptStreamError`, whatever the payload."""
    if payload.numel() != -(-count // 8):
        raise CorruptStreamError(
            f"mask has {payload.numel()} bytes, {count} values take {-(-count // 8)}"
        )
    bits = (payload.view(-1, 1) >> _places(payload.device) & 1).view(-1).to(torch.bool)
    if bool(bits[count:].any()):
        raise CorruptStreamError("mask has bits set behind its last value")
    return bits[:count].clone()


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)
