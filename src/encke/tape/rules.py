"""What each op's backward needs of the tensors it saved.

Autograd saves whole tensors because it must be exact about all of them. Most ops need less:
ReLU the sign, max-pooling its window positions, pooling's input only its shape. The table
`RULES` says so, op by op and role by role, with the names that autograd itself uses
(`ReluBackward0` saves `result`). An op or role that is not in it is kept as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor


class Need(Enum):
    """How much of a saved tensor backward needs."""

    VALUE = "value"  # its values, which may carry an error
    EXACT = "exact"  # its values as they are
    WEIGHT = "weight"  # as VALUE, unless it is or comes from a parameter or a constant
    FACTOR = "factor"  # as VALUE, unless it is a constant, a dropout's noise for one
    SIGN = "sign"  # on which side of a threshold each value lies
    INDEX = "index"  # integers
    WINDOW = "window"  # a max-pool's winner, as its place in the window
    SHAPE = "shape"  # nothing but its shape


@dataclass(frozen=True, slots=True)
class Rule:
    """A need, and for `SIGN` how to split (at zero, unless `split` says otherwise) and what
    stands for each side in backward."""

    need: Need
    split: Callable[[Tensor, Any], Tensor] | None = None
    sides: Callable[[Any], tuple[float, float]] | None = None
    #: Whether a zero is on the one side and every other value on the other, so that values
    #: kept with exact zeros tell the side as well.
    zero_tells: bool = False


VALUE, EXACT, WEIGHT = Rule(Need.VALUE), Rule(Need.EXACT), Rule(Need.WEIGHT)
FACTOR, INDEX, SHAPE = Rule(Need.FACTOR), Rule(Need.INDEX), Rule(Need.SHAPE)
#: torch passes the gradient unless result <= 0, so a NaN passes it.
RELU = Rule(Need.SIGN, sides=lambda _: (1.0, 0.0), zero_tells=True)
POSITIVE = Rule(Need.SIGN, lambda t, _: torch.gt(t, 0), sides=lambda _: (1.0, -1.0))


def _inside_open(t: Tensor, node: Any) -> Tensor:
    return torch.gt(t, node._saved_min_val) & torch.lt(t, node._saved_max_val)


def _open_sides(node: Any) -> tuple[float, float]:
    low, high = float(node._saved_min_val), float(node._saved_max_val)
    if math.isinf(low) and math.isinf(high):
        return 0.0, high
    if math.isinf(high):
        return low + max(1.0, abs(low)), high
    if math.isinf(low):
        return high - max(1.0, abs(high)), high
    return (low + high) / 2, high


HARDTANH = Rule(Need.SIGN, _inside_open, sides=_open_sides)
#: torch passes a sixth of the gradient where -3 < x < 3, so not for a NaN.
HARDSIGMOID = Rule(
    Need.SIGN, lambda t, _: torch.gt(t, -3) & torch.lt(t, 3), sides=lambda _: (0.0, 3.0)
)

_table: dict[str, dict[str, Rule]] = {}


def add_rule(ops: str, **roles: Rule) -> None:
    """Say what the backward of one or more ops (separated by spaces) needs, role by role.

    >>> add_rule("MyActivation", **{"tensors[0]": VALUE})
    >>> find("MyActivation", "tensors[0]").need
    <Need.VALUE: 'value'>
    """
    for op in ops.split():
        _table[op] = {**_table.get(op, {}), **roles}


def find(op: str, role: str) -> Rule | None:
    """The rule for a role of an op; None where the table has none."""
    return _table.get(op, {}).get(role)


def known(op: str) -> bool:
    return op in _table


def operations() -> list[str]:
    """Every op that has rules."""
    return sorted(_table)


# Products: the activation enters the weight's gradient, the weight the activation's.
add_rule("Convolution ConvolutionOverrideable CudnnConvolution", input=VALUE, weight=WEIGHT)
add_rule("MkldnnConvolution SlowConvDilated2D SlowConv2D SlowConv3D", self=VALUE, weight=WEIGHT)
add_rule("Addmm", mat1=VALUE, mat2=WEIGHT)
add_rule("Mm Bmm", self=VALUE, mat2=WEIGHT)
add_rule("Baddbmm Addbmm", batch1=VALUE, batch2=WEIGHT)
add_rule("Linear MkldnnLinear", input=VALUE, weight=WEIGHT, self=VALUE)
add_rule("Mv", self=VALUE, vec=WEIGHT)
add_rule("Dot", self=VALUE, tensor=VALUE)
add_rule("SparseAddmm", mat1=EXACT, mat2=VALUE, self=EXACT)
# Norms: the statistics are small and enter everything.
for _op in ("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm", "NativeGroupNorm"):
    add_rule(_op, input=VALUE, result1=EXACT, result2=EXACT)
add_rule("NativeLayerNorm FusedRmsNorm", input=VALUE, result1=EXACT, result2=EXACT)
# Attention: the row sums (logsumexp) stay exact, so that errors of q and k do not compound.
for _op in (
    "ScaledDotProductFlashAttentionForCpu",
    "ScaledDotProductFlashAttention",
    "ScaledDotProductEfficientAttention",
    "ScaledDotProductCudnnAttention",
):
    add_rule(_op, query=VALUE, key=VALUE, value=VALUE, output=VALUE, out=VALUE)
    add_rule(_op, logsumexp=EXACT, log_sumexp=EXACT)
add_rule("Softmax", result=VALUE)
add_rule("LogSoftmax", result=EXACT)
# Activations whose slope needs the value.
add_rule("Gelu Silu Mish Softplus LogSigmoid Hardswish Celu", self=VALUE)
add_rule("LogSigmoid", buffer=VALUE)
add_rule("Glu Erf Sin Cos Log Log1P Pow Sqrt Rsqrt Reciprocal", self=VALUE)
add_rule("Pow", exponent=FACTOR, result=VALUE)
add_rule("Elu Celu", self=VALUE, result=VALUE)
add_rule("Sigmoid Tanh Exp Expm1 Sqrt Rsqrt Reciprocal", result=VALUE)
add_rule("Mul", self=FACTOR, other=FACTOR)
add_rule("Div", self=FACTOR, other=FACTOR)
# Its slope jumps at zero, and an error carries the values near it across.
add_rule("PreluKernel", self=EXACT, weight=EXACT)
# Activations whose slope has two values.
add_rule("Relu", result=RELU)
add_rule("Threshold", self=EXACT, result=EXACT)
add_rule("LeakyRelu", self=POSITIVE, result=POSITIVE)
add_rule("Hardtanh", self=HARDTANH)
add_rule("Hardsigmoid", self=HARDSIGMOID)
# Pooling and padding look only at their input's shape.
add_rule("MaxPool2DWithIndices MaxPool3DWithIndices", self=SHAPE, result1=Rule(Need.WINDOW))
add_rule("AdaptiveMaxPool2D AdaptiveMaxPool3D FractionalMaxPool2D", self=SHAPE, result1=INDEX)
add_rule("AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D", self=SHAPE)
for _dims in (1, 2, 3):
    add_rule(f"ReflectionPad{_dims}D ReplicationPad{_dims}D", self=SHAPE)
# Integers and truth values.
add_rule("Embedding", indices=INDEX)
add_rule("Gather IndexSelect IndexAdd Scatter ScatterAdd Take", index=INDEX)
add_rule("Gather Take", self=SHAPE)
add_rule("IndexAdd", source=SHAPE)
add_rule("Index IndexPut", **{f"indices[{i}]": INDEX for i in range(8)})
add_rule("Max Min", indices=INDEX)
add_rule("Topk Sort Kthvalue Mode Median", indices=INDEX)
add_rule("Where", condition=INDEX)
add_rule("MaskedFill", mask=INDEX)
add_rule("NativeDropout", result1=INDEX)
add_rule("Abs", self=EXACT)
add_rule("Sgn", self=EXACT, result=EXACT)


def is_two_valued(t: Tensor) -> float | None:
    """The one value other than zero that `t` holds, or None if there are more.

    A dropout's noise on the CPU is such a tensor: 0 or 1 / (1 - p).

    >>> is_two_valued(torch.tensor([0.0, 1.25, 0.0, 1.25]))
    1.25
    >>> is_two_valued(torch.tensor([0.0, 1.25, 2.5]))
    """
    few = t.flatten()[:256] if t.is_contiguous() else t.reshape(-1)[:256]
    scale = few.max()
    if not math.isfinite(scale) or not bool(((few == 0) | (few == scale)).all()):
        return None
    scale = t.max()
    if not math.isfinite(scale) or not bool(((t == 0) | (t == scale)).all()):
        return None
    return float(scale)
