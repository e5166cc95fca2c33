"""For a product of activations and weights: how often an element of dY enters dW.

With errors that are independent from value to value and of mean square m in the saved input,
each element of dY adds m · dY² to the variance of every element of dW that it enters. So

    E‖ΔdW‖² = m · products · ‖dY‖²

where `products` is what these functions return: the fan-in of an output, less what a
convolution's padding cuts off. It is exact for linear layers. For convolutions it takes dY²
to be spread evenly over positions, which matters only at the borders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def linear(inputs: int) -> float:
    """Every element of dY meets one row of the input.

    >>> linear(768)
    768.0
    """
    return float(inputs)


def convolution(
    *,
    weight: Sequence[int],
    input_size: Sequence[int],
    output_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int = 1,
) -> float:
    """Elements of dW that an element of dY enters, on average over positions.

    Sizes are of the spatial dimensions. `weight` is torch's: (out, in / groups, *kernel), or
    for a transposed convolution (in, out / groups, *kernel).

    >>> convolution(weight=(8, 3, 3, 3), input_size=(6, 6), output_size=(4, 4), stride=(1, 1),
    ...             padding=(0, 0), dilation=(1, 1), transposed=False)
    27.0
    >>> round(convolution(weight=(8, 3, 3), input_size=(4,), output_size=(4,), stride=(1,),
    ...                   padding=(1,), dilation=(1,), transposed=False), 3)
    7.5
    """
    channels = weight[0] / groups if transposed else weight[1]
    pairs = 1.0
    for axis, kernel in enumerate(weight[2:]):
        reach = [
            _inside(
                kernel_at=k * dilation[axis] - padding[axis],
                here=input_size[axis] if transposed else output_size[axis],
                there=output_size[axis] if transposed else input_size[axis],
                stride=stride[axis],
            )
            for k in range(kernel)
        ]
        pairs *= sum(reach) / output_size[axis]
    return channels * pairs


def _inside(*, kernel_at: int, here: int, there: int, stride: int) -> int:
    """How many of the positions p < here have 0 <= p · stride + kernel_at < there."""
    first = max(0, math.ceil(-kernel_at / stride))
    last = min(here - 1, (there - 1 - kernel_at) // stride)
    return max(0, last - first + 1)


def of_node(op: str, node: Any, seen: Sequence[int], out: Sequence[int]) -> float:
    """`products` for a node of autograd's graph; zero where there is no closed form.

    seen  shape of the saved input
    out   shape of the op's output
    """
    if op in ("Addmm", "Mm", "Linear"):
        return linear(seen[-1])
    if op == "Convolution":
        weight = tuple(node._saved_weight.shape)
        spatial = len(weight) - 2
        return convolution(
            weight=weight,
            input_size=tuple(seen[-spatial:]),
            output_size=tuple(out[-spatial:]),
            stride=node._saved_stride,
            padding=node._saved_padding,
            dilation=node._saved_dilation,
            transposed=bool(node._saved_transposed),
            groups=node._saved_groups,
        )
    return 0.0
