"""Zero-order entropy of a tensor's quantised codes: the limit of coding them one by one.

With dither the limit is the entropy of a code given its dither class, since the decoder
knows the class. The codes come from the reference backend's quantiser.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from encke.ops import quantiser
from encke.ops.quantiser import DITHER, PLAIN, Quantiser
from encke.ops.reference import dither, quantise

#: Stands for a value that is exactly zero, which has no code with dither.
EXACT_ZERO = 2**30
CHUNK = 65_536


def codes(x: Tensor, q: Quantiser) -> tuple[np.ndarray, np.ndarray | None]:
    """The codes of finite values in memory order, and their dither classes if any.

    Each chunk of 65,536 values uses the tier that its largest magnitude asks for.
    """
    values = x.detach().contiguous().flatten()
    result = torch.empty(values.numel(), dtype=torch.int32)
    u = quantise.dither_of(q, values.numel(), values.dtype, values.device)
    for start in range(0, values.numel(), CHUNK):
        part = values[start : start + CHUNK]
        step = q.step0 if part.abs().max().item() <= q.limit0 else q.step1
        own = u[start : start + CHUNK] if q.kind == DITHER else u
        result[start : start + CHUNK] = quantise.linear_codes(part, q.kind, step, own)
    if q.kind != DITHER:
        return result.numpy(), None
    result[values == 0] = EXACT_ZERO
    classes = dither.integers(q.seed, values.numel(), values.device) >> 13
    return result.numpy(), classes.numpy()


def entropy(symbols: np.ndarray) -> float:
    """Bits a symbol, of the empirical distribution.

    >>> entropy(np.array([0, 0, 1, 1]))
    1.0
    """
    counts = np.unique(symbols, return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def conditional_entropy(symbols: np.ndarray, classes: np.ndarray) -> float:
    """Bits a symbol once its class is known."""
    total = 0.0
    for number in range(8):
        members = symbols[classes == number]
        if members.size:
            total += members.size * entropy(members)
    return total / symbols.size


def code_entropy(x: Tensor, error: float, *, dither: bool, seed: int = 0) -> float:
    """The least bits a value that coding x's codes one by one can take."""
    kind = DITHER if dither else PLAIN
    q = quantiser.linear(error, x.dtype, kind=kind, seed=seed)
    symbols, classes = codes(x, q)
    return entropy(symbols) if classes is None else conditional_entropy(symbols, classes)
