"""Ops whose backward needs less than every bit of a saved tensor: the rules for them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from encke.tape.autograd.nodes import VIEWS, op_name, parameter_behind
from encke.tape.needs.table import (
    EXACT,
    FACTOR,
    INDEX,
    MASK,
    SENSITIVE,
    SHAPE,
    VALUE,
    WEIGHT,
    Need,
    Rule,
    add_rule,
    exact,
)

STATISTIC = exact("a statistic: small, and it enters every value")
RANDOM = exact("the state of a random number generator")
OPAQUE = exact("bytes that only one library can read")

# -- products: the activation enters the weight's gradient, the weight the activation's ----

add_rule("Convolution ConvolutionOverrideable", input=VALUE, weight=WEIGHT)
add_rule("CudnnConvolution MkldnnConvolution", self=VALUE, weight=WEIGHT)
add_rule("NnpackSpatialConvolution", input=VALUE, weight=WEIGHT)
for _op in (
    "CudnnConvolutionTranspose MiopenConvolution MiopenConvolutionTranspose",
    "MiopenDepthwiseConvolution MpsConvolution MpsConvolutionTranspose",
    "ConvDepthwise2D ConvDepthwise3D SlowConvDilated2D SlowConv2D SlowConv3D ConvTbc",
    "SlowConvDilated3D SlowConvTranspose2D SlowConvTranspose3D",
):
    add_rule(_op, self=VALUE, weight=WEIGHT)
add_rule("ConvTbc", bias=WEIGHT)
add_rule("Addmm", mat1=VALUE, mat2=WEIGHT)
add_rule("Mm Bmm", self=VALUE, mat2=WEIGHT)
add_rule("GroupedMm", self=VALUE, mat2=WEIGHT, offs=INDEX)
add_rule("Matmul", self=VALUE, other=WEIGHT)
add_rule("Baddbmm Addbmm", batch1=VALUE, batch2=WEIGHT)
add_rule("Linear MkldnnLinear", input=VALUE, weight=WEIGHT, self=VALUE)
add_rule("Mv", self=VALUE, vec=WEIGHT)
add_rule("Addmv", mat=VALUE, vec=WEIGHT)
add_rule("Addr", vec1=VALUE, vec2=VALUE)
add_rule("Dot", self=VALUE, tensor=VALUE)
add_rule("Vdot LinalgCross", self=VALUE, other=VALUE)
add_rule("Trilinear", i1=VALUE, i2=WEIGHT, i3=VALUE)
add_rule("SparseAddmm", mat1=EXACT, mat2=VALUE, self=EXACT)

# -- norms ---------------------------------------------------------------------------------

for _op in (
    "NativeBatchNorm CudnnBatchNorm MiopenBatchNorm NativeBatchNormLegit",
    "NativeBatchNormLegitNoTraining BatchNormWithUpdate BatchNormNoUpdate",
):
    add_rule(_op, input=VALUE, weight=STATISTIC, result1=STATISTIC, result2=STATISTIC)
    add_rule(_op, running_mean=STATISTIC, running_var=STATISTIC)
add_rule("CudnnBatchNorm BatchNormWithUpdate BatchNormNoUpdate", result3=OPAQUE)
add_rule("NativeGroupNorm NativeLayerNorm FusedRmsNorm", input=VALUE, weight=STATISTIC)
add_rule("NativeGroupNorm NativeLayerNorm FusedRmsNorm", result1=STATISTIC, result2=STATISTIC)
add_rule("NativeLayerNorm", bias=STATISTIC)
add_rule("Var VarMean Std StdMean", self=VALUE)
add_rule("Std", result=STATISTIC)
add_rule("StdMean", result0=STATISTIC)

# -- attention: the row sums (logsumexp) stay exact, so errors of q and k do not compound --

for _op in (
    "ScaledDotProductFlashAttentionForCpu ScaledDotProductFlashAttention",
    "ScaledDotProductEfficientAttention ScaledDotProductCudnnAttention",
    "ScaledDotProductFusedAttentionOverrideable FlashAttention EfficientAttention",
    "CudnnAttention",
):
    add_rule(_op, query=VALUE, key=VALUE, value=VALUE, output=VALUE, out=VALUE)
    add_rule(_op, logsumexp=STATISTIC, log_sumexp=STATISTIC, softmax_logsumexp=STATISTIC)
    add_rule(_op, attn_mask=MASK, attn_bias=MASK, bias=MASK)
    add_rule(_op, cum_seq_k=INDEX, cum_seq_q=INDEX, cu_seqlens_k=INDEX, cu_seqlens_q=INDEX)
    add_rule(_op, philox_seed=RANDOM, philox_offset=RANDOM, rng_state=RANDOM, unused=RANDOM)
add_rule("Softmax SafeSoftmax", result=VALUE)
add_rule("MaskedSoftmax", result=VALUE, mask=INDEX)

# -- recurrent cells -----------------------------------------------------------------------

add_rule("ThnnFusedLstmCell", cx=VALUE, result1=VALUE, result2=VALUE)
add_rule("ThnnFusedGruCell", hx=VALUE, result1=VALUE)
add_rule("ThnnFusedLstmCell ThnnFusedGruCell", input_gates=VALUE, hidden_gates=VALUE)
add_rule("ThnnFusedLstmCell ThnnFusedGruCell", input_bias=WEIGHT, hidden_bias=WEIGHT)
# Of its results, the layer run again gives those that backward asks for: `recompute.rerun`.
add_rule("MkldnnRnnLayer", input=VALUE, hx_=EXACT, cx_=EXACT)
add_rule("MkldnnRnnLayer", **{f"weight{i}": WEIGHT for i in range(4)})
add_rule("MkldnnRnnLayer", **{f"result{i}": Rule(Need.RERUN) for i in range(4)})

# -- activations whose slope needs the value -----------------------------------------------

add_rule("Gelu Silu Mish Softplus LogSigmoid Hardswish Celu Elu Glu", self=VALUE)
add_rule("LogSigmoid", buffer=VALUE)
add_rule("Elu Celu Sigmoid Tanh", result=VALUE)
add_rule("Erf Erfc Sin Cos Sinc Atan Asinh", self=VALUE)


def _power(node: Any) -> Rule:
    """Squares and cubes; a fraction or a negative exponent divides by its base."""
    exponent = getattr(node, "_saved_exponent", None)
    small = isinstance(exponent, int | float) and exponent in (1, 2, 3, 4)
    return VALUE if small else SENSITIVE


add_rule("Pow", self=Rule(Need.VALUE, pick=_power), exponent=SENSITIVE, result=SENSITIVE)


def _maker(node: Any, edge: int) -> str:
    """The op that computed an input of `node`, before views and casts of it."""
    maker = node.next_functions[edge][0]
    while maker is not None and op_name(maker) in VIEWS and maker.next_functions:
        maker = maker.next_functions[0][0]
    return "" if maker is None else op_name(maker)


def _factor(partner: int) -> Rule:
    """A factor, unless its partner is a reciprocal: then the product is a division."""

    def pick(node: Any) -> Rule:
        return SENSITIVE if _maker(node, partner) == "Reciprocal" else FACTOR

    return Rule(Need.FACTOR, pick=pick)


add_rule("Mul", self=_factor(1), other=_factor(0))
add_rule("Addcmul", tensor1=FACTOR, tensor2=FACTOR)
add_rule("Lerp", self=VALUE, end=VALUE, weight=FACTOR)


def _dividend(node: Any) -> Rule:
    """The dividend matters for the divisor's gradient only, whose square it is divided by."""
    raw = node._raw_saved_other
    divisor = None if raw.unpack_hook is not None else node._saved_other
    learnt = isinstance(divisor, Tensor) and parameter_behind(divisor) is not None
    return VALUE if learnt else SENSITIVE


add_rule("Div", self=Rule(Need.VALUE, pick=_dividend), other=SENSITIVE)
add_rule("GridSampler2D GridSampler3D GridSampler2DCpuFallback", input=VALUE)
add_rule("CudnnGridSampler", self=VALUE)

# -- activations whose slope has two values ------------------------------------------------


def _inside_open(t: Tensor, node: Any) -> Tensor:
    return torch.gt(t, node._saved_min_val) & torch.lt(t, node._saved_max_val)


def _between(low: float, high: float) -> float:
    """A number between two, of which one or both may be infinite."""
    if math.isinf(low) and math.isinf(high):
        return 0.0
    if math.isinf(high):
        return low + max(1.0, abs(low))
    return high - max(1.0, abs(high)) if math.isinf(low) else (low + high) / 2


def _open_sides(node: Any) -> tuple[float, float]:
    low, high = float(node._saved_min_val), float(node._saved_max_val)
    return _between(low, high), high


def _limits(node: Any) -> tuple[float, float]:
    low, high = getattr(node, "_saved_min", None), getattr(node, "_saved_max", None)
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def _inside_closed(t: Tensor, node: Any) -> Tensor:
    """Where a clamp passes the gradient; a NaN is compared as torch does."""
    low, high = getattr(node, "_saved_min", None), getattr(node, "_saved_max", None)
    passes = torch.ones((), dtype=torch.bool, device=t.device).expand(t.shape)
    if low is not None:
        passes = passes & torch.ge(t, low)
    return passes if high is None else passes & torch.le(t, high)


def _closed_sides(node: Any) -> tuple[float, float]:
    low, high = _limits(node)
    outside = low - max(1.0, abs(low)) if math.isinf(high) else high + max(1.0, abs(high))
    return _between(low, high), outside


def _clamp(node: Any) -> Rule:
    """Limits that are tensors are compared value by value."""
    limits = getattr(node, "_saved_min", None), getattr(node, "_saved_max", None)
    if any(isinstance(limit, Tensor) for limit in limits):
        return EXACT_SIDES
    return CLAMP if _limits(node)[0] <= _limits(node)[1] else EXACT_SIDES


def _shrunk_sides(node: Any) -> tuple[float, float]:
    return 2 * abs(float(node._saved_lambd)) + 1, 0.0


EXACT_SIDES = exact("the slope jumps, and an error would take values across")
#: torch passes the gradient unless result <= 0, so a NaN passes it.
RELU = Rule(Need.SIGN, sides=lambda _: (1.0, 0.0), zero_tells=True)
POSITIVE = Rule(Need.SIGN, lambda t, _: torch.gt(t, 0), sides=lambda _: (1.0, -1.0))
HARDTANH = Rule(Need.SIGN, _inside_open, sides=_open_sides)
CLAMP = Rule(Need.SIGN, _inside_closed, sides=_closed_sides)
#: torch passes a sixth of the gradient where -3 < x < 3, so not for a NaN.
HARDSIGMOID = Rule(
    Need.SIGN, lambda t, _: torch.gt(t, -3) & torch.lt(t, 3), sides=lambda _: (0.0, 3.0)
)
#: Not inside ±lambd: a NaN is outside.
SHRINK = Rule(
    Need.SIGN,
    lambda t, node: ~(torch.ge(t, -node._saved_lambd) & torch.le(t, node._saved_lambd)),
    sides=_shrunk_sides,
)
FINITE = Rule(Need.SIGN, lambda t, _: torch.isfinite(t), sides=lambda _: (0.0, math.inf))

add_rule("Relu", result=RELU)
add_rule("LeakyRelu", self=POSITIVE, result=POSITIVE)
add_rule("Hardtanh", self=HARDTANH)
add_rule("Hardsigmoid", self=HARDSIGMOID)
add_rule("Hardshrink Softshrink", self=SHRINK)
add_rule("NanToNum", self=FINITE)
for _op in ("Clamp", "ClampMin", "ClampMax"):
    add_rule(_op, self=Rule(Need.SIGN, pick=_clamp), min=EXACT_SIDES, max=EXACT_SIDES)

# -- only the shape ------------------------------------------------------------------------

add_rule("MaxPool2DWithIndices MaxPool3DWithIndices", self=SHAPE, result1=Rule(Need.WINDOW))
add_rule("AdaptiveMaxPool2D AdaptiveMaxPool3D", self=SHAPE, result1=INDEX)
add_rule("FractionalMaxPool2D FractionalMaxPool3D", self=SHAPE, result1=INDEX)
add_rule("AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D", self=SHAPE)
for _dims in (1, 2, 3):
    add_rule(f"ReflectionPad{_dims}D ReplicationPad{_dims}D", self=SHAPE)
add_rule("FftR2C", self=SHAPE)
add_rule("Complex", real=SHAPE, imag=SHAPE)

# -- integers and truth values -------------------------------------------------------------

add_rule("Embedding", indices=INDEX)
add_rule("EmbeddingBag", indices=INDEX, offsets=INDEX, per_sample_weights=FACTOR)
add_rule("EmbeddingBag", result1=INDEX, result2=INDEX, result3=INDEX, weight=WEIGHT)
for _op in (
    "Gather IndexSelect IndexAdd IndexCopy IndexFill Scatter ScatterAdd Take Put",
    "IndexReduce ScatterReduce",
):
    add_rule(_op, index=INDEX)
add_rule("Gather Take MaskedSelect", self=SHAPE)
add_rule("IndexAdd IndexCopy Put", source=SHAPE)
add_rule("Index IndexPut IndexPutImpl UnsafeIndex UnsafeIndexPut", indices=INDEX)
add_rule("UnsafeMaskedIndex UnsafeMaskedIndexPutAccumulate", indices=INDEX, mask=INDEX)
add_rule("Max Min Cummax Cummin", indices=INDEX)
add_rule("Cummax Cummin", self=SHAPE)
add_rule("Topk Sort Kthvalue Mode Median Nanmedian", indices=INDEX)
add_rule("MaxUnpool2D MaxUnpool3D", indices=INDEX)
add_rule("Where", condition=INDEX)
add_rule("MaskedFill MaskedScatter MaskedSelect", mask=INDEX)
add_rule("NativeDropout FusedDropout", result1=INDEX)
add_rule("NllLoss NllLoss2D", self=SHAPE, target=INDEX, weight=STATISTIC)
add_rule("NllLoss NllLoss2D", total_weight=STATISTIC)
add_rule("PackPaddedSequence", result1=INDEX)
for _op in (
    "FakeQuantizePerChannelAffineCachemask FakeQuantizePerTensorAffineCachemask",
    "FakeQuantizePerTensorAffineCachemaskTensorQparams FusedMovingAvgObsFqHelper",
):
    add_rule(_op, mask=INDEX)


def _reduced(node: Any) -> Rule:
    """A sum or mean of scattered values does not look at them."""
    return SHAPE if node._saved_reduce in ("sum", "mean") else SENSITIVE


_scattered = Rule(Need.SHAPE, pick=_reduced)
add_rule("ScatterReduce", self=_scattered, src=_scattered, result=_scattered)

# -- the head of a language model: logits are computed again from what it saves -------------

AGAIN = Rule(Need.EXACT, why="logits are computed again from it", probe=False)
add_rule("LazyLinear LazyCrossEntropy LinearCrossEntropy BlockwiseCrossEntropy", tensors=AGAIN)
add_rule("SharedEmbedding", tensors=INDEX)

# -- functions of torch's own in Python ----------------------------------------------------

#: A checkpoint computes its segment again from what it saved. Its backward adds to the
#: gradients of the segment's parameters, so it must run once only.
add_rule("CheckpointFunction", tensors=Rule(Need.VALUE, probe=False))
