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
    if any(long > whole for long, whole in zip(span[1:], size[1:], strict=True)):
        return None  # two places of a window would lie equally far from its start
    far = _distances(span, size)
    place_of = torch.zeros(int(far[-1]) + 1, dtype=torch.uint8)
    place_of[far] = torch.arange(count, dtype=torch.uint8)
    first = _first(index, stride, padding, size)
    place_of, far = place_of.to(index.device), far.to(index.device)
    places = place_of[index - first]

    def restore(places: Tensor) -> Tensor:
        return far[places.to(torch.int32)].add_(_first(places, stride, padding, size))

    return places, restore


def _distances(span: Sequence[int], size: Sequence[int]) -> Tensor:
    """How far in the input plane each place of a window lies from the window's first."""
    far = torch.zeros(1, dtype=torch.int64)
    for length, whole in zip(span, size, strict=True):
        far = (far.view(-1, 1) * whole + torch.arange(length)).view(-1)
    return far


def _full(numbers: Sequence[int], axes: int) -> list[int]:
    given = list(numbers)
    return given * axes if len(given) == 1 else given


def _first(
    like: Tensor, stride: Sequence[int], padding: Sequence[int], size: Sequence[int]
) -> Tensor:
    """Flat position of each output's window in the input plane, ready to broadcast.

    A window that begins in the padding has its first place outside; sums are right anyway.
    """
    axes = len(stride)
    first = torch.zeros((), dtype=torch.int64, device=like.device)
    for axis in range(axes):
        at = torch.arange(like.shape[like.ndim - axes + axis], device=like.device)
        first = first.unsqueeze(-1) * size[axis] + at * stride[axis] - padding[axis]
    return first
