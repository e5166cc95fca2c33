"""A max-pool's winners as places in their windows: a few bits in place of 64.

Autograd keeps the flat position in the input plane. Given where each window starts, only
the place inside it is new: 2 bits for 2×2, 4 bits for 3×3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_BYTE = 255


def to_places(
    index: Tensor, node: Any, input_size: Sequence[int]
) -> tuple[Tensor, Callable[[Tensor], Tensor]] | None:
    """Places in the windows, and the way back; None if they would not fit in a byte."""
    axes = len(node._saved_kernel_size)
    kernel = _full(node._saved_kernel_size, axes)
    stride = _full(node._saved_stride, axes) or kernel
    padding = _full(node._saved_padding, axes)
    dilation = _full(node._saved_dilation, axes)
    span = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    count = 1
    for length in span:
        count *= length
    if count > _BYTE:
        return None
    size = list(input_size[-axes:])
    starts = _starts(index, stride, padding)
    rest, place, factor = index, torch.zeros_like(index), 1
    for axis in reversed(range(axes)):
        position = rest % size[axis]
        rest = rest // size[axis]
        place += (position - starts[axis]) * factor
        factor *= span[axis]

    def restore(places: Tensor) -> Tensor:
        rest = places.to(torch.int64)
        result, factor = torch.zeros_like(rest), 1
        for axis in reversed(range(axes)):
            result += (rest % span[axis] + starts_like(rest)[axis]) * factor
            rest = rest // span[axis]
            factor *= size[axis]
        return result

    def starts_like(places: Tensor) -> list[Tensor]:
        return _starts(places, stride, padding)

    return place.to(torch.uint8), restore


def _full(numbers: Sequence[int], axes: int) -> list[int]:
    given = list(numbers)
    return given * axes if len(given) == 1 else given


def _starts(like: Tensor, stride: Sequence[int], padding: Sequence[int]) -> list[Tensor]:
    """Where the window of each output begins, along each axis, ready to broadcast."""
    axes = len(stride)
    result = []
    for axis in range(axes):
        at = torch.arange(like.shape[like.ndim - axes + axis], device=like.device)
        at = at * stride[axis] - padding[axis]
        result.append(at.view(-1, *(1,) * (axes - 1 - axis)))
    return result
