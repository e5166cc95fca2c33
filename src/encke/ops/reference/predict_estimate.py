"""The bits that codes of `predict` will take, estimated from a sample of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def estimated_bits(magnitudes: Tensor, negative: Tensor) -> float:
    """The bits that codes of these magnitudes and signs take: the entropy of the stage's
    digits, with what a sample of this size leaves out, and the bits that no table shortens."""
    if magnitudes.numel() == 0:
        return 0.0
    counts: dict[int, int] = {}
    plain = 0
    nonzero = int(torch.count_nonzero(magnitudes))
    below = int(torch.count_nonzero(magnitudes[negative]))
    for magnitude in magnitudes.tolist():
        symbol, raw = magnitude, 0
        magnitude = min(magnitude, 2**20 - 1)
        if magnitude >= 16:
            exponent = magnitude.bit_length() - 1
            raw = exponent - 3
            symbol = 16 + 8 * (exponent - 4) + (magnitude >> raw & 7)
        counts[symbol] = counts.get(symbol, 0) + 1
        plain += raw
    total = magnitudes.numel()
    entropy = 0.0
    for symbol in sorted(counts):
        share = counts[symbol] / total
        entropy -= share * math.log2(share)
    if 0 < below < nonzero:
        share = below / nonzero
        sign = -(share * math.log2(share) + (1 - share) * math.log2(1 - share))
        entropy += sign * nonzero / total
    return entropy + (len(counts) - 1) / (total * 1.3862943611198906) + plain / total
