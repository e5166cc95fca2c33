"""What a layer's input and output gradient look like as rows of its two factors.

For each kind of layer, the rows a (of the input) and g (of the output's gradient) are such
that Σ g aᵀ over all rows is the weight's gradient, whatever stride, dilation or padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of the input (groups, n, columns) and of the gradient (groups, n, rows).

    An embedding's inputs are rows of zeros with a single one: for them `counts` says how often
    each stands there, which is the diagonal of their factor.
    """

    gradient: Tensor
    number: int
    input: Tensor | None = None
    counts: Tensor | None = None


#: Input and output's gradient of one call of a layer → rows.
Reader = Callable[[Tensor, Tensor], Rows]


def linear_rows(x: Tensor, gradient: Tensor, *, bias: bool, dtype: torch.dtype) -> Rows:
    """Each vector along the last dimension is a row, with a one behind it for the bias."""
    a = x.detach().reshape(-1, x.shape[-1]).to(dtype)
    g = gradient.reshape(-1, gradient.shape[-1]).to(dtype)
    if bias:
        a = F.pad(a, (0, 1), value=1.0)
    return Rows(input=a[None], gradient=g[None], number=len(a))


def embedding_rows(
    indices: Tensor,
    gradient: Tensor,
    *,
    vocabulary: int,
    padding: int | None,
    dtype: torch.dtype,
) -> Rows:
    """A token is a row; the padding token is none, because its weight learns nothing."""
    flat = indices.reshape(-1)
    g = gradient.reshape(-1, gradient.shape[-1]).to(dtype)
    if padding is not None:
        kept = flat != padding
        flat, g = flat[kept], g[kept]
    counts = torch.bincount(flat, minlength=vocabulary).to(dtype)
    return Rows(counts=counts[None], gradient=g[None], number=len(flat))


def convolution_rows(
    layer: Convolution, x: Tensor, gradient: Tensor, *, bias: bool, dtype: torch.dtype
) -> Rows:
    """Each place of the output is a row: what the kernel saw there."""
    dimensions = len(layer.kernel_size)
    x = x.detach()
    if x.dim() == dimensions + 1:  # without a batch dimension
        x, gradient = x[None], gradient[None]
    seen = padded(layer, x)
    for axis in range(dimensions):
        dilation = layer.dilation[axis]
        extent = dilation * (layer.kernel_size[axis] - 1) + 1
        seen = seen.unfold(2 + axis, extent, layer.stride[axis])[..., ::dilation]
    # (n, channels, *places, *kernel) → (groups, n·places, channels of a group · kernel [+ 1])
    n, channels = seen.shape[:2]
    places, kernel = seen.shape[2 : 2 + dimensions], seen.shape[2 + dimensions :]
    groups, number = layer.groups, n * prod(places)
    grouped = seen.reshape(n, groups, channels // groups, *places, *kernel)
    order = (1, 0, *range(3, 3 + dimensions), 2, *range(3 + dimensions, 3 + 2 * dimensions))
    grouped = grouped.permute(order)
    columns = prod(kernel) * channels // groups
    a = x.new_ones((groups, number, columns + bias), dtype=dtype)
    a[..., :columns].view(grouped.shape).copy_(grouped)
    g = gradient.reshape(n, groups, -1, prod(places)).permute(1, 0, 3, 2)
    return Rows(input=a, gradient=g.reshape(groups, number, -1).to(dtype), number=number)


def padded(layer: Convolution, x: Tensor) -> Tensor:
    """x as the kernel sees it at its edges."""
    amounts: list[int] = []
    for axis in reversed(range(len(layer.kernel_size))):  # F.pad begins at the last dimension
        if layer.padding == "same":
            total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            amounts += [total // 2, total - total // 2]
        elif layer.padding == "valid":
            amounts += [0, 0]
        else:
            amounts += [int(layer.padding[axis])] * 2
    if not any(amounts):
        return x
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(x, amounts, mode=mode)
