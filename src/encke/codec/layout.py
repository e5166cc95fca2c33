"""Reading a tensor as it lies in memory, and giving its strides back."""

from __future__ import annotations

import torch
from torch import Tensor

from encke.errors import UnsupportedError


def require_plain(x: Tensor) -> None:
    """Raise unless x has values in strided memory."""
    if x.layout is not torch.strided:
        raise UnsupportedError(
            f"tensor has layout {x.layout}, only strided ones are taken; compress its values "
            "and indices, or to_dense() first"
        )
    if x.is_meta:
        raise UnsupportedError("tensor is on the meta device and has no values to compress")


def memory_order(x: Tensor) -> tuple[int, ...]:
    """The dimensions from slowest to fastest where x is dense, else as they are.

    >>> memory_order(torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last))
    (0, 2, 3, 1)
    """
    n = x.ndim
    if x.is_contiguous():
        return tuple(range(n))
    if n == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return (0, 2, 3, 1)
    if torch.compiler.is_compiling():  # strides may be symbols, which have no order
        return tuple(range(n))
    shape, strides = x.shape, x.stride()
    order = sorted(range(n), key=lambda d: (-strides[d], -shape[d]))
    expected = 1
    for d in reversed(order):
        if shape[d] != 1 and strides[d] != expected:
            return tuple(range(n))
        expected *= shape[d]
    return tuple(order)


def in_memory(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """x with its dimensions in `order`, as a view."""
    return x if order == tuple(range(len(order))) else x.permute(order)


def to_memory(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """x as a contiguous tensor with its dimensions in `order`; a copy only if it must be."""
    return in_memory(x, order).contiguous()


def from_memory(y: Tensor, order: tuple[int, ...]) -> Tensor:
    """The inverse of `to_memory`, as a view."""
    if order == tuple(range(len(order))):
        return y
    inverse = [0] * len(order)
    for position, dimension in enumerate(order):
        inverse[dimension] = position
    return y.permute(inverse)
