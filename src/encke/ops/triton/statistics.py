"""Range, energy and sparsity of a tensor, found while it is encoded or in a pass alone."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from encke.ops.triton.kernels import statistics as kernels
from encke.ops.triton.launch import FLOATS, launch, on, pattern

#: Blocks of 32 that a program looks at, a chunk of `fixed`, and its warps.
ROWS, WARPS = 256, 16
_CHUNK = 32 * ROWS


class Statistics(NamedTuple):
    """Of the finite values; `low` and `high` are infinities the wrong way round if none is."""

    low: float
    high: float
    square_sum: float
    nonzeros: int
    nonfinite: int


def room(x: Tensor) -> Tensor:
    """Where an encoder puts what it finds: five numbers for each chunk."""
    return torch.empty(-(-x.numel() // _CHUNK), 5, dtype=torch.float64, device=x.device)


def measure(x: Tensor) -> Tensor:
    """The same five numbers for each chunk, without encoding."""
    found = room(x)
    with on(x):
        launch(
            kernels.statistics,
            found.shape[0],
            pattern(x),
            found,
            x.numel(),
            warps=WARPS,
            ROWS=ROWS,
            DTYPE=FLOATS[x.dtype],
        )
    return found


def joined(found: Tensor) -> Tensor:
    """The five numbers of the whole tensor, still on the device."""
    if found.shape[0] == 0:
        none = [math.inf, -math.inf, 0.0, 0.0, 0.0]
        return torch.tensor(none, dtype=torch.float64, device=found.device)
    sums = found[:, 2:].sum(0)
    return torch.cat([found[:, 0].amin().view(1), found[:, 1].amax().view(1), sums])


def read(found: Tensor) -> Statistics:
    """The numbers on the host, which waits for them."""
    low, high, square_sum, nonzeros, nonfinite = joined(found).tolist()
    return Statistics(low, high, square_sum, int(nonzeros), int(nonfinite))
