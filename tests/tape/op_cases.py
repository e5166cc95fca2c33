"""One small computation for each op that the tape has rules for, and its variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A function of activations and parameters whose graph holds the op `op`.

    inputs   shapes of the activations; they reach the function as tensors with a history
    weights  shapes of the parameters
    low      inputs are drawn from [low, low + 2]; None draws from a normal distribution
    saves    whether the op's saved tensors are large enough, and ours, for a rule to act
    close    by what share of their norm gradients may differ at a bound of a thousandth
    """

    op: str
    name: str
    function: Callable[..., Any]
    inputs: tuple[Shape, ...]
    weights: tuple[Shape, ...] = ()
    low: float | None = None
    dtype: torch.dtype = torch.float32
    saves: bool = True
    close: float = 0.03

    def __str__(self) -> str:
        return f"{self.op}-{self.name}"

    def gradients(self, tape: Any = None, *, seed: int = 0) -> list[Tensor]:
        """Gradients of a fixed random projection of what the function returns."""
        torch.manual_seed(seed)
        leaves = [self._draw(shape).requires_grad_() for shape in self.inputs]
        weights = [nn.Parameter(self._draw(shape) / 4) for shape in self.weights]
        loss = self.loss(leaves, weights, tape)
        return list(torch.autograd.grad(loss, [*leaves, *weights], allow_unused=True))

    def loss(self, leaves: list[Tensor], weights: list[nn.Parameter], tape: Any) -> Tensor:
        if tape is None:
            return self._project([x + 0.0 for x in leaves], weights)
        with tape:
            return self._project([x + 0.0 for x in leaves], weights)

    def _project(self, inputs: list[Tensor], weights: list[nn.Parameter]) -> Tensor:
        result = self.function(*inputs, *weights)
        outputs = [result] if isinstance(result, Tensor) else list(result)
        generator = torch.Generator().manual_seed(7)
        total = torch.zeros(())
        for output in outputs:
            if output.is_floating_point() and output.requires_grad:
                way = torch.randn(output.shape, generator=generator).to(output.dtype)
                total = total + (output * way).sum().float()
        return total

    def _draw(self, shape: Shape) -> Tensor:
        if self.low is None:
            return torch.randn(shape).to(self.dtype)
        return (self.low + 2 * torch.rand(shape)).to(self.dtype)


CASES: list[Case] = []


def case(op: str, name: str, function: Callable[..., Any], *inputs: Shape, **more: Any) -> None:
    CASES.append(Case(op=op, name=name, function=function, inputs=inputs, **more))


def names(op: str) -> list[Case]:
    return [c for c in CASES if c.op == op]


IMAGE, SEQUENCE, VOLUME = (4, 8, 16, 16), (4, 8, 128), (2, 8, 8, 8, 8)
MATRIX = (64, 48)
last = torch.channels_last


def _index(*shape: int, high: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(3))


# Convolutions
conv = "Convolution"
case(
    conv,
    "2d",
    lambda x, w, b: F.conv2d(x, w, b, padding=1),
    IMAGE,
    weights=((6, 8, 3, 3), (6,)),
)
case(conv, "1d", lambda x, w: F.conv1d(x, w, padding=2), SEQUENCE, weights=((6, 8, 5),))
case(conv, "3d", lambda x, w: F.conv3d(x, w, padding=1), VOLUME, weights=((4, 8, 3, 3, 3),))
case(conv, "groups", lambda x, w: F.conv2d(x, w, groups=4), IMAGE, weights=((8, 2, 3, 3),))
case(conv, "depthwise", lambda x, w: F.conv2d(x, w, groups=8), IMAGE, weights=((8, 1, 3, 3),))
case(
    conv,
    "strided",
    lambda x, w: F.conv2d(x, w, stride=2, dilation=2),
    IMAGE,
    weights=((6, 8, 3, 3),),
)
case(
    conv,
    "transposed",
    lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
    IMAGE,
    weights=((8, 4, 3, 3),),
)
case(
    conv,
    "channels_last",
    lambda x, w: F.conv2d(x.contiguous(memory_format=last), w, padding=1).relu(),
    IMAGE,
    weights=((6, 8, 3, 3),),
)
case(
    conv, "non_contiguous", lambda x, w: F.conv2d(x[:, ::2], w), IMAGE, weights=((6, 4, 3, 3),)
)
case(
    conv,
    "transposed_memory",
    lambda x, w: F.conv2d(x.transpose(2, 3), w),
    IMAGE,
    weights=((6, 8, 3, 3),),
)
case(conv, "unbatched", lambda x, w: F.conv2d(x, w), IMAGE[1:], weights=((6, 8, 3, 3),))
case(conv, "computed_kernel", lambda x, w: F.conv2d(x, w.tanh()), IMAGE, (24, 8, 3, 3))
case(conv, "of_relu", lambda x, w: F.conv2d(x.relu_(), w), IMAGE, weights=((6, 8, 3, 3),))
case(
    "MkldnnConvolution",
    "2d",
    lambda x, w, b: torch.mkldnn_convolution(x, w, b, (1, 1), (1, 1), (1, 1), 1),
    IMAGE,
    weights=((6, 8, 3, 3), (6,)),
)
case(
    "SlowConv2D",
    "2d",
    lambda x, w, b: torch.ops.aten.thnn_conv2d(x, w, [3, 3], b, [1, 1], [1, 1]),
    IMAGE,
    weights=((6, 8, 3, 3), (6,)),
)
case(
    "SlowConv3D",
    "3d",
    lambda x, w, b: torch.ops.aten.slow_conv3d(x, w, [3, 3, 3], b, [1, 1, 1], [1, 1, 1]),
    VOLUME,
    weights=((4, 8, 3, 3, 3), (4,)),
)
case(
    "SlowConvDilated2D",
    "2d",
    lambda x, w, b: torch.ops.aten.slow_conv_dilated2d(x, w, [3, 3], b, [1, 1], [1, 1], [2, 2]),
    IMAGE,
    weights=((6, 8, 3, 3), (6,)),
)

# Products
case("Addmm", "linear", F.linear, MATRIX, weights=((32, 48), (32,)))
case("Addmm", "sequence", F.linear, (4, 32, 48), weights=((32, 48), (32,)))
case(
    "Addmm",
    "activations",
    lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2.0),
    (64, 64),
    MATRIX,
    MATRIX[::-1],
)
case(
    "Addmm",
    "non_contiguous",
    lambda x, w, b: F.linear(x.t(), w, b),
    MATRIX,
    weights=((32, 64), (32,)),
)
case("Mm", "no_bias", F.linear, MATRIX, weights=((32, 48),))
case("Mm", "activations", torch.mm, MATRIX, MATRIX[::-1])
case("Mm", "with_itself", lambda x: x @ x.t(), MATRIX)
case("Mm", "step", lambda x: x[:, ::2] @ x[:, 1::2].t(), (64, 96))
case("Bmm", "attention", lambda q, k: q @ k.transpose(1, 2), (8, 32, 16), (8, 32, 16))
case("Mm", "broadcast", lambda x, y: x @ y, (8, 32, 32), (32, 32))
case("Baddbmm", "3d", torch.baddbmm, (4, 32, 40), (4, 32, 16), (4, 16, 40))
case("Addbmm", "3d", torch.addbmm, (32, 40), (4, 32, 16), (4, 16, 40))
case("Mv", "vector", torch.mv, MATRIX, (48,))
case("Mv", "long_vector", torch.mv, (4, 2048), (2048,))
case("Dot", "vectors", torch.dot, (2048,), (2048,))


def _adjacency(n: int) -> Tensor:
    at = torch.stack([_index(4 * n, high=n), _index(4 * n, high=n).flip(0)])
    return torch.sparse_coo_tensor(at, torch.ones(4 * n), (n, n)).coalesce()


case(
    "MkldnnLinear",
    "opaque",
    lambda x, w, b: torch.ops.aten.mkldnn_linear(x.to_mkldnn(), w, b).to_dense(),
    MATRIX,
    weights=((32, 48), (32,)),
    saves=False,
)
case("SparseAddmm", "graph", lambda x: torch.sparse.mm(_adjacency(64), x), MATRIX, saves=False)

# Norms
case(
    "NativeBatchNorm",
    "2d",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    IMAGE,
    weights=((8,), (8,)),
)
case(
    "NativeBatchNorm",
    "eval",
    lambda x, w, b: F.batch_norm(x, torch.zeros(8), torch.ones(8), w, b),
    IMAGE,
    weights=((8,), (8,)),
)
case(
    "NativeBatchNorm",
    "channels_last_relu",
    lambda x, w: F.batch_norm(
        x.contiguous(memory_format=last), None, None, w, None, training=True
    ).relu_(),
    IMAGE,
    weights=((8,),),
)
case(
    "NativeBatchNorm",
    "1d",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    MATRIX,
    weights=((48,), (48,)),
)
case(
    "NativeBatchNorm",
    "relu_conv",
    lambda x, w, b, k: F.conv2d(F.batch_norm(x, None, None, w, b, training=True).relu_(), k),
    IMAGE,
    weights=((8,), (8,), (6, 8, 3, 3)),
)
case(
    "NativeBatchNorm",
    "no_weights",
    lambda x, k: F.conv2d(F.batch_norm(x, None, None, training=True).relu(), k),
    IMAGE,
    weights=((6, 8, 3, 3),),
)
case(
    "NativeLayerNorm",
    "linear",
    lambda x, w, b, m: F.layer_norm(x, (48,), w, b) @ m,
    MATRIX,
    weights=((48,), (48,), (48, 32)),
)
case(
    "NativeLayerNorm",
    "many_rows",
    lambda x, w: F.layer_norm(x, (8,), w),
    (2048, 8),
    weights=((8,),),
)
case(
    "NativeLayerNorm",
    "images",
    lambda x, m: F.layer_norm(x, (8, 16, 16)) @ m,
    IMAGE,
    weights=((16, 16),),
)
case(
    "NativeGroupNorm",
    "images",
    lambda x, w, b: F.group_norm(x, 4, w, b).relu(),
    IMAGE,
    weights=((8,), (8,)),
)
case(
    "NativeGroupNorm",
    "instances",
    lambda x, w, b: F.group_norm(x, 8, w, b),
    SEQUENCE,
    weights=((8,), (8,)),
)
case("Rsqrt", "rms_norm", lambda x, w: F.rms_norm(x, (8,), w), (2048, 8), weights=((8,),))

# Attention
attend = F.scaled_dot_product_attention
flash = "ScaledDotProductFlashAttentionForCpu"
HEADS = (2, 4, 32, 16)
case(flash, "heads", attend, HEADS, HEADS, HEADS)
case(flash, "causal", lambda q, k, v: attend(q, k, v, is_causal=True), HEADS, HEADS, HEADS)


def _self_attention(x: Tensor) -> Tensor:
    """Query, key and value are slices of one tensor, heads are moved by transposing."""
    q, k, v = (t.view(2, 32, 4, 16).transpose(1, 2) for t in x.split(64, dim=2))
    return attend(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 32, 64)


case(flash, "slices_of_one", _self_attention, (2, 32, 192))
case("Softmax", "rows", lambda x: x.softmax(-1), MATRIX)
case("Softmax", "columns", lambda x: x.softmax(0), MATRIX)
case("Softmax", "times_values", lambda x, v: x.softmax(-1) @ v, (48, 48), (48, 32))
case("LogSoftmax", "rows", lambda x: x.log_softmax(-1), MATRIX)

# Activations whose slope needs the value
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Gelu": F.gelu,
    "Silu": F.silu,
    "Mish": F.mish,
    "Softplus": F.softplus,
    "LogSigmoid": F.logsigmoid,
    "Hardswish": F.hardswish,
    "Hardsigmoid": F.hardsigmoid,
    "Celu": lambda x: F.celu(x, 0.7),
    "Glu": F.glu,
    "Erf": torch.erf,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Elu": F.elu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Exp": torch.exp,
    "Expm1": torch.expm1,
    "Abs": torch.abs,
    "Sgn": torch.sgn,
    "Relu": F.relu,
    "LeakyRelu": lambda x: F.leaky_relu(x, 0.1),
    "Hardtanh": lambda x: F.hardtanh(x, -0.5, 1.0),
    "Threshold": lambda x: F.threshold(x, 0.3, -1.0),
}
for _op, _function in ACTIVATIONS.items():
    case(_op, "contiguous", _function, MATRIX, saves=_op not in ("Sgn",))
    case(
        _op,
        "transposed",
        lambda x, f=_function: f(x.transpose(0, 1)),
        MATRIX,
        saves=_op not in ("Sgn",),
    )
    case(
        _op, "strided", lambda x, f=_function: f(x[:, ::2]), (64, 96), saves=_op not in ("Sgn",)
    )
case("Gelu", "tanh", lambda x: F.gelu(x, approximate="tanh"), MATRIX)
case("Gelu", "linear", lambda x, w: F.gelu(x) @ w, MATRIX, weights=((48, 32),))
case("Silu", "linear", lambda x, w: F.silu(x) @ w, MATRIX, weights=((48, 32),))
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "Relu": torch.relu_,
    "LeakyRelu": lambda x: F.leaky_relu_(x, 0.1),
    "Hardtanh": lambda x: F.hardtanh_(x, -0.5, 1.0),
    "Elu": F.elu_,
    "Celu": torch.celu_,
    "Sigmoid": torch.sigmoid_,
    "Tanh": torch.tanh_,
    "Exp": torch.exp_,
    "Silu": lambda x: F.silu(x, inplace=True),
    "Hardswish": lambda x: F.hardswish(x, inplace=True),
    "Threshold": lambda x: F.threshold_(x, 0.3, -1.0),
}
for _op, _function in IN_PLACE.items():
    case(_op, "in_place", _function, MATRIX)
    # Of a view: autograd keeps these tensors inside another node, out of the tape's reach.
    case(
        _op,
        "in_place_of_a_view",
        lambda x, f=_function: (f(x[:32]), x)[1] * 2,
        (128, 48),
        saves=False,
    )
case("Relu", "relu6", lambda x, w: F.relu6(x * 3).relu() @ w, MATRIX, weights=((48, 32),))
case("Hardtanh", "relu6", lambda x: F.relu6(x * 5), MATRIX)
case("Hardtanh", "unbounded", lambda x: F.hardtanh(x, -0.5, float("inf")), MATRIX)
case(
    "Relu",
    "used_twice",
    lambda x, w: (lambda y: y @ w + (y * y) @ w)(x.relu()),
    MATRIX,
    weights=((48, 32),),
)
# Where the slope jumps, no value may cross: these gradients are exact.
case("PreluKernel", "channels", F.prelu, IMAGE, weights=((8,),), close=0.0)
case("Hardsigmoid", "saturated", lambda x: F.hardsigmoid(x * 3), MATRIX, close=0.0)
case("Hardtanh", "saturated", lambda x: F.hardtanh(x * 3), MATRIX, close=0.0)
POSITIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "Log": torch.log,
    "Log1P": torch.log1p,
    "Pow": lambda x: x**3,
    "Sqrt": torch.sqrt,
    "Rsqrt": torch.rsqrt,
    "Reciprocal": torch.reciprocal,
}
for _op, _function in POSITIVE.items():
    case(_op, "contiguous", _function, MATRIX, low=0.5)
case("Pow", "square", torch.square, MATRIX)
case("Pow", "exponents", torch.pow, MATRIX, MATRIX, low=0.5, saves=False)
case("Mul", "two", torch.mul, MATRIX, MATRIX)
case("Mul", "itself", lambda x: x * x, MATRIX)
case("Mul", "broadcast", torch.mul, (64, 1, 48), (32, 48), low=0.5)
case(
    "Mul",
    "dropout",
    lambda x, w: F.dropout(x, 0.3, training=True) @ w,
    MATRIX,
    weights=((48, 32),),
)
case("Mul", "dropout2d", lambda x: F.dropout2d(x, 0.3, training=True) * x, IMAGE)
case(
    "Mul",
    "gelu_dropout",
    lambda x, w: F.dropout(F.gelu(x), 0.3, training=True) @ w,
    MATRIX,
    weights=((48, 32),),
)
case(
    "Mul",
    "constant",
    lambda x: x * torch.linspace(-1, 1, 48 * 64).view(64, 48),
    MATRIX,
    saves=False,
)
case(
    "Mul",
    "mask_of_a_row",
    lambda x, w: (F.gelu(x).view(1, 2048) * (_index(8, 2048, high=2).float())) @ w,
    (32, 64),
    weights=((2048, 4),),
)
case(
    "Mul",
    "infinite_mask",
    lambda x: (x * torch.where(_index(64, 48, high=2) > 0, torch.inf, 0.0)).clamp(-1, 1),
    MATRIX,
    saves=False,
)
case(
    "Mul",
    "complex",
    lambda x: torch.view_as_real(
        torch.view_as_complex(x) * torch.polar(torch.ones(32, 48), torch.rand(32, 48))
    ),
    (32, 48, 2),
    saves=False,
)
case("Div", "two", torch.div, MATRIX, MATRIX, low=0.5, saves=False)
case(
    "Div",
    "constant",
    lambda x: x / torch.linspace(1, 2, 48 * 64).view(64, 48),
    MATRIX,
    saves=False,
)

# Pooling and padding
case("MaxPool2DWithIndices", "2x2", lambda x: F.max_pool2d(x, 2), IMAGE)
case("MaxPool2DWithIndices", "3x3_padded", lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE)
case(
    "MaxPool2DWithIndices",
    "dilated_ceil",
    lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0), dilation=2, ceil_mode=True),
    (8, 8, 15, 17),
)
case("MaxPool2DWithIndices", "large_window", lambda x: F.max_pool2d(x, 17, 1), (8, 8, 24, 24))
case("MaxPool2DWithIndices", "1d", lambda x: F.max_pool1d(x, 3, 2), (8, 8, 129))
case("MaxPool2DWithIndices", "unbatched", lambda x: F.max_pool2d(x, 2), (8, 32, 32))
case(
    "MaxPool2DWithIndices",
    "channels_last_conv",
    lambda x, w: F.max_pool2d(F.conv2d(x.contiguous(memory_format=last), w).relu_(), 2),
    IMAGE,
    weights=((24, 8, 3, 3),),
)
case(
    "MaxPool2DWithIndices",
    "with_its_index",
    lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    IMAGE,
)
case("MaxPool3DWithIndices", "2x2x2", lambda x: F.max_pool3d(x, 2), (4, 8, 8, 8, 8))
case("MaxPool3DWithIndices", "padded", lambda x: F.max_pool3d(x, 3, (2, 1, 2), 1), VOLUME)
case("AdaptiveMaxPool2D", "5x5", lambda x: F.adaptive_max_pool2d(x, 7), (8, 8, 16, 16))
case("AdaptiveMaxPool2D", "1d", lambda x: F.adaptive_max_pool1d(x, 17), (8, 8, 64))
case("AdaptiveMaxPool3D", "3d", lambda x: F.adaptive_max_pool3d(x, 4), VOLUME)
case(
    "FractionalMaxPool2D",
    "2d",
    lambda x: F.fractional_max_pool2d(
        x, 2, output_size=9, _random_samples=torch.full((4, 8, 2), 0.3)
    ),
    IMAGE,
)
case("AvgPool2D", "2x2", lambda x: F.avg_pool2d(x, 2), IMAGE)
case("AvgPool2D", "1d", lambda x: F.avg_pool1d(x, 3, 2, 1), SEQUENCE)
case(
    "AvgPool2D",
    "channels_last_conv",
    lambda x, w: F.avg_pool2d(F.conv2d(x.contiguous(memory_format=last), w).relu_(), 2),
    IMAGE,
    weights=((24, 8, 3, 3),),
)
case("AvgPool3D", "2x2x2", lambda x: F.avg_pool3d(x, 2), VOLUME)
case("AdaptiveAvgPool2D", "3x3", lambda x: F.adaptive_avg_pool2d(x, 3), IMAGE)
case(
    "AdaptiveAvgPool2D",
    "channels_last_conv",
    lambda x, w: F.adaptive_avg_pool2d(
        F.conv2d(x.contiguous(memory_format=last), w).relu_(), 3
    ),
    IMAGE,
    weights=((24, 8, 3, 3),),
)
case("AdaptiveAvgPool3D", "3d", lambda x: F.adaptive_avg_pool3d(x, 3), VOLUME)
for _mode, _word in (("reflect", "Reflection"), ("replicate", "Replication")):
    case(f"{_word}Pad1D", "1", lambda x, m=_mode: F.pad(x, (2, 1), mode=m), SEQUENCE)
    case(f"{_word}Pad2D", "2", lambda x, m=_mode: F.pad(x, (2, 1, 1, 2), mode=m), IMAGE)
    case(f"{_word}Pad3D", "3", lambda x, m=_mode: F.pad(x, (1, 1, 2, 1, 1, 2), mode=m), VOLUME)

# Integers and truth values
ROWS = (64, 48)
case(
    "Embedding", "table", lambda w: F.embedding(_index(16, 64, high=50), w), weights=((50, 8),)
)
case(
    "Gather",
    "expanded_index",
    lambda x: x.gather(0, _index(700, 1, high=64).expand(700, 48)),
    ROWS,
)
case("Mul", "expanded", lambda x, y: x.expand(32, 64, 48) * y, (1, 64, 48), (32, 64, 48))
case("Bmm", "expanded", lambda x, y: x.expand(8, 64, 48) @ y, (64, 48), (8, 48, 32))
case("Gather", "columns", lambda x: x.gather(1, _index(64, 20, high=48)), ROWS)
case("Gather", "along", lambda x: torch.take_along_dim(x, _index(64, 20, high=48), 1), ROWS)
case("IndexSelect", "rows", lambda x: x.index_select(0, _index(700, high=64)), ROWS)
case("IndexAdd", "rows", lambda x, y: x.index_add(0, _index(700, high=64), y), ROWS, (700, 48))
case("Scatter", "values", lambda x, y: x.scatter(1, _index(64, 20, high=48), y), ROWS, (64, 20))
case(
    "ScatterAdd",
    "rows",
    lambda x, y: x.scatter_add(1, _index(64, 20, high=48), y),
    ROWS,
    (64, 20),
)
case("Take", "flat", lambda x: x.take(_index(700, high=3000)), ROWS)
case("Index", "list", lambda x: x[_index(700, high=64), _index(700, high=48)], ROWS)
case("Index", "mask", lambda x: x[_index(128, 48, high=2).bool()], (128, 48))
case("IndexPut", "list", lambda x, y: x.index_put((_index(700, high=64),), y), ROWS, (700, 48))
case(
    "IndexPut",
    "set_item",
    lambda x, y: (x.__setitem__(_index(700, high=64), y), x)[1],
    ROWS,
    (700, 48),
)
case("Max", "dim", lambda x: x.max(1).values, (700, 4))
case("Min", "dim", lambda x: x.min(1).values, (700, 4))
case("Topk", "dim", lambda x: x.topk(10, dim=1).values, ROWS)
case("Sort", "dim", lambda x: x.sort(dim=1).values, ROWS)
case("Kthvalue", "dim", lambda x: x.kthvalue(2, dim=1).values, (700, 4))
case("Mode", "dim", lambda x: x.mode(dim=1).values, (700, 4))
case("Median", "dim", lambda x: x.median(dim=1).values, (700, 5))
case(
    "Where",
    "mask",
    lambda x, y: torch.where(_index(128, 48, high=2) > 0, x, y),
    (128, 48),
    (128, 48),
)
case(
    "MaskedFill", "mask", lambda x: x.masked_fill(_index(128, 48, high=2) > 0, -1.0), (128, 48)
)
case("NativeDropout", "mask", lambda x: torch.native_dropout(x, 0.3, True)[0], (128, 48))

#: Ops that cannot be made on a CPU, and why.
ELSEWHERE = {
    **dict.fromkeys(
        (
            "CudnnConvolution",
            "CudnnBatchNorm",
            "ScaledDotProductFlashAttention",
            "ScaledDotProductEfficientAttention",
            "ScaledDotProductCudnnAttention",
        ),
        "needs CUDA",
    ),
    "MiopenBatchNorm": "needs ROCm",
    "FusedRmsNorm": "needs CUDA; on the CPU an RMS norm is Pow, Mean, Rsqrt and Mul",
    "ConvolutionOverrideable": "needs a device outside torch that overrides convolution",
    "Linear": "needs MPS or nested tensors; elsewhere a linear layer is Addmm or Mm",
}

_HALVES = (
    "Convolution-2d",
    "Addmm-linear",
    "Bmm-attention",
    "NativeBatchNorm-relu_conv",
    "NativeLayerNorm-linear",
    "Gelu-linear",
    "Softmax-times_values",
    "Relu-used_twice",
    f"{flash}-slices_of_one",
    "Mul-dropout",
    "MaxPool2DWithIndices-3x3_padded",
    "LeakyRelu-contiguous",
    "Hardtanh-relu6",
    "Tanh-in_place",
    "AvgPool2D-2x2",
    "Mul-two",
)
CASES += [
    Case(
        **{
            **c.__dict__,
            "name": f"{c.name}-bf16",
            "dtype": torch.bfloat16,
            "inputs": (
                tuple(2 * n if i == 0 else n for i, n in enumerate(c.inputs[0])),
                *c.inputs[1:],
            )
            if len(c.inputs) == 1 and c.op != flash
            else c.inputs,
        }
    )
    for c in list(CASES)
    if str(c) in _HALVES
]
CASES += [
    Case(**{**c.__dict__, "name": f"{c.name}-{str(dtype).split('.')[1]}", "dtype": dtype})
    for dtype in (torch.float64, torch.float16)
    for c in list(CASES)
    if str(c) in ("Addmm-sequence", "Gelu-linear", "Relu-used_twice", "Convolution-1d")
]
