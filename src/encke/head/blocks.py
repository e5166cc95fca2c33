"""Logits in blocks: how large a block is, its buffers, and the blocks of one projection.

A block is some rows (tokens) times some columns (entries of the vocabulary). Blocks take all
rows if they can: a block of the weight's gradient is then one product that is written once.
Blocks of whole rows would add to the whole gradient of the weight again and again.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: What a block of logits takes.
BLOCK_BYTES = 8 << 20
#: Columns of a block if rows abound: narrower products waste the processor.
FEWEST_COLUMNS = 128

HALF = (torch.float16, torch.bfloat16)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums over logits of `dtype` are taken in: float32 at least.

    >>> accumulation_dtype(torch.bfloat16), accumulation_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float32 if dtype in HALF else dtype


def block_size(
    rows: int, columns: int, *, logit_bytes: int, block_bytes: int
) -> tuple[int, int]:
    """Rows and columns of a block that takes about `block_bytes`.

    >>> block_size(512, 50257, logit_bytes=4, block_bytes=8 << 20)
    (512, 4096)
    >>> block_size(100_000, 50257, logit_bytes=4, block_bytes=8 << 20)
    (16384, 128)
    """
    fit = max(1, block_bytes // logit_bytes)
    wide = min(columns, max(fit // max(rows, 1), FEWEST_COLUMNS))
    return min(rows, max(1, fit // max(wide, 1))), wide


def spans(length: int, size: int) -> Iterator[slice]:
    """The slices of at most `size` that cover `length`.

    >>> list(spans(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for first in range(0, length, max(size, 1)):
        yield slice(first, min(length, first + size))


class Buffers:
    """Memory that is used for one block after another, by name."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flat: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor of that shape; what was taken by the same name is overwritten."""
        count = shape[0] * shape[1]
        flat = self._flat.get((name, dtype))
        if flat is None or flat.numel() < count:
            flat = torch.empty(count, dtype=dtype, device=self._device)
            self._flat[name, dtype] = flat
        return flat[:count].view(shape)


class Projection:
    """The map from hidden states to logits, `cap · tanh(scale · (h Wᵀ + b))`, block by block.

    dtype  of the products; under autocast it is not the weight's
    scale  factor of the product
    cap    None leaves tanh out
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        dtype: torch.dtype,
        scale: float = 1.0,
        cap: float | None = None,
        block_bytes: int,
    ) -> None:
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.dtype, self.scale, self.cap = dtype, scale, cap
        self.block_bytes = block_bytes
        self.accumulate = accumulation_dtype(dtype)

    @property
    def classes(self) -> int:
        return self.weight.shape[0]

    def block_size(self, rows: int, *, keep_tanh: bool = False) -> tuple[int, int]:
        """Rows and columns of a block; `keep_tanh` as in `logits`."""
        each = self.accumulate.itemsize * (1 + (keep_tanh and self.cap is not None))
        if self.dtype != self.accumulate:
            each += self.dtype.itemsize
        return block_size(rows, self.classes, logit_bytes=each, block_bytes=self.block_bytes)

    def weight_block(self, columns: slice) -> Tensor:
        return self.weight[columns].to(self.dtype)

    def logits(
        self, hidden: Tensor, columns: slice, buffers: Buffers, *, keep_tanh: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The logits of some rows of hidden states, and tanh of them if it is to be kept."""
        weight = self.weight_block(columns)
        shape = hidden.shape[0], weight.shape[0]
        product = buffers.take("product", shape, self.dtype)
        if self.bias is None:
            torch.mm(hidden, weight.t(), out=product)
        else:
            torch.addmm(self.bias[columns].to(self.dtype), hidden, weight.t(), out=product)
        logits = product
        if self.dtype != self.accumulate:
            logits = buffers.take("logits", shape, self.accumulate).copy_(product)
        if self.scale != 1:
            logits.mul_(self.scale)
        if self.cap is None:
            return logits, None
        tanh = logits.tanh_()
        if not keep_tanh:
            return tanh.mul_(self.cap), None
        capped = buffers.take("capped", shape, self.accumulate)
        return torch.mul(tanh, self.cap, out=capped), tanh
