"""More small computations like those of `op_cases`, for ops that fewer networks use."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from op_cases import (
    CASES,
    ELSEWHERE,
    IMAGE,
    MATRIX,
    ROWS,
    SEQUENCE,
    VOLUME,
    Case,
    _index,
    case,
)
from torch import Tensor

aten = torch.ops.aten

# Products
case("Addmv", "vector", torch.addmv, (64,), MATRIX, (48,))
case("Addr", "outer", torch.addr, (64, 48), (64,), (48,), saves=False)
case("Addr", "long", torch.addr, (1100, 2), (1100,), (2,))
case(
    "GroupedMm",
    "experts",
    lambda x, w: F.grouped_mm(x, w, offs=torch.tensor([16, 40, 64], dtype=torch.int32)),
    (64, 48),
    weights=((3, 48, 32),),
)
case("Trilinear", "bilinear", F.bilinear, MATRIX, (64, 32), weights=((16, 48, 32),))
case("LinalgCross", "rows", torch.linalg.cross, (512, 3), (512, 3))
case(
    "Vdot",
    "complex",
    lambda x, y: torch.view_as_real(torch.vdot(_complex(x), _complex(y))),
    (1024, 2),
    (1024, 2),
)
case("ConvTbc", "1d", torch.conv_tbc, (128, 4, 8), weights=((5, 8, 6), (6,)))
case(
    "SlowConvTranspose2D",
    "2d",
    lambda x, w, b: aten.slow_conv_transpose2d(x, w, [3, 3], b),
    IMAGE,
    weights=((8, 6, 3, 3), (6,)),
)
case(
    "SlowConvTranspose3D",
    "3d",
    lambda x, w, b: aten.slow_conv_transpose3d(x, w, [3, 3, 3], b),
    VOLUME,
    weights=((8, 4, 3, 3, 3), (4,)),
)
case(
    "SlowConvDilated3D",
    "3d",
    lambda x, w, b: aten.slow_conv_dilated3d(
        x, w, [3, 3, 3], b, [1, 1, 1], [2, 2, 2], [2, 2, 2]
    ),
    VOLUME,
    weights=((4, 8, 3, 3, 3), (4,)),
)

# Norms
for _op, _function in {
    "Var": lambda x: x.var(1),
    "Std": lambda x: x.std(1),
    "VarMean": lambda x: torch.var_mean(x, 1),
    "StdMean": lambda x: torch.std_mean(x, 1),
}.items():
    case(_op, "rows", _function, MATRIX)
case(
    "NativeBatchNormLegit",
    "training",
    lambda x, w, b: aten._native_batch_norm_legit(x, w, b, True, 0.1, 1e-5)[0],
    IMAGE,
    weights=((8,), (8,)),
)
case(
    "NativeBatchNormLegitNoTraining",
    "eval",
    lambda x, w, b: aten._native_batch_norm_legit_no_training(
        x, w, b, torch.zeros(8), torch.ones(8), 0.1, 1e-5
    )[0],
    IMAGE,
    weights=((8,), (8,)),
)
case(
    "BatchNormWithUpdate",
    "training",
    lambda x, w, b: aten._batch_norm_with_update(
        x, w, b, torch.zeros(8), torch.ones(8), 0.1, 1e-5
    )[0],
    IMAGE,
    weights=((8,), (8,)),
)
case(
    "BatchNormNoUpdate",
    "eval",
    lambda x, w, b: aten._batch_norm_no_update(
        x, w, b, torch.zeros(8), torch.ones(8), 0.1, 1e-5
    )[0],
    IMAGE,
    weights=((8,), (8,)),
)
case(
    "NativeGroupNorm",
    "silu_conv",
    lambda x, w, b, k: F.conv2d(F.silu(F.group_norm(x, 4, w, b)), k),
    IMAGE,
    weights=((8,), (8,), (6, 8, 3, 3)),
)
case(
    "NativeGroupNorm",
    "no_weights_silu_conv",
    lambda x, k: F.conv2d(F.silu(F.group_norm(x, 2)), k),
    IMAGE,
    weights=((6, 8, 3, 3),),
)

# Attention and recurrent layers
case("SafeSoftmax", "rows", lambda x: aten._safe_softmax(x, -1), MATRIX)
case(
    "SafeSoftmax",
    "attention_with_dropout",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2),
    (2, 4, 32, 16),
    (2, 4, 32, 16),
    (2, 4, 32, 16),
)
case(
    "MaskedSoftmax",
    "rows",
    lambda x: torch._masked_softmax(x, _index(64, 48, high=2).bool(), 1, 2),
    MATRIX,
)


def _lstm(x: Tensor, *parameters: Tensor) -> Tensor:
    state = torch.zeros(1, x.shape[1], 32), torch.zeros(1, x.shape[1], 32)
    return torch.lstm(x, state, parameters, True, 1, 0.0, True, False, False)[0]


case(
    "MkldnnRnnLayer",
    "lstm",
    _lstm,
    (16, 8, 24),
    weights=((128, 24), (128, 32), (128,), (128,)),
)

# Activations
for _op, _function in {
    "Erfc": torch.erfc,
    "Sinc": torch.sinc,
    "Atan": torch.atan,
    "Asinh": torch.asinh,
    "Hardshrink": F.hardshrink,
    "Softshrink": F.softshrink,
    "NanToNum": torch.nan_to_num,
    "Clamp": lambda x: x.clamp(-0.5, 1.0),
    "ClampMin": lambda x: aten.clamp_min(x, -0.5),
    "ClampMax": lambda x: aten.clamp_max(x, 0.5),
}.items():
    case(_op, "contiguous", _function, MATRIX)
    case(_op, "transposed", lambda x, f=_function: f(x.t()), MATRIX)
#: What torch does with a NaN or an infinity, the tape does too.
_STRANGE = torch.tensor([math.nan, math.inf, -math.inf, 1.0, -0.5, 0.5])


def _strange(x: Tensor) -> Tensor:
    y = x.clone()
    y.view(-1)[:6] = _STRANGE
    return y


for _op, _function in {
    "Clamp": lambda x: x.clamp(-0.5, 1.0),
    "ClampMin": lambda x: aten.clamp_min(x, -0.5),
    "ClampMax": lambda x: aten.clamp_max(x, 0.5),
    "Hardshrink": F.hardshrink,
    "Softshrink": F.softshrink,
    "NanToNum": torch.nan_to_num,
    "Hardtanh": F.hardtanh,
}.items():
    case(_op, "strange", lambda x, f=_function: f(_strange(x)), MATRIX, close=0.0)
case("Clamp", "one_limit", lambda x: x.clamp(max=0.2), MATRIX, close=0.0)
case("Clamp", "saturated", lambda x: (x * 3).clamp(-1, 1), MATRIX, close=0.0)
case("Clamp", "crossed", lambda x: x.clamp(1.0, -1.0), MATRIX, close=0.0, saves=False)
case("Clamp", "tensors", lambda x, y: x.clamp(y - 1, y + 1), MATRIX, MATRIX, saves=False)
case("Addcmul", "three", torch.addcmul, MATRIX, MATRIX, MATRIX)
case("Lerp", "weights", torch.lerp, MATRIX, MATRIX, MATRIX)
case("Div", "by_a_parameter", torch.div, MATRIX, weights=((48,),))
for _word in ("bilinear", "nearest"):
    case(
        "GridSampler2D",
        _word,
        lambda x, g, m=_word: F.grid_sample(x, g.tanh(), mode=m, align_corners=False),
        IMAGE,
        (4, 12, 12, 2),
    )
case(
    "GridSampler3D",
    "bilinear",
    lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
    VOLUME,
    (2, 6, 6, 6, 3),
)

# What is computed element by element from others, as people write it out
case(
    "Pow",
    "gelu_written_out",
    lambda x, w: (
        (0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))) @ w
    ),
    MATRIX,
    weights=((48, 32),),
)
case(
    "Mul",
    "rms_norm_written_out",
    lambda x, g, w: (g * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))) @ w,
    MATRIX,
    weights=((48,), (48, 32)),
)
case(
    "Mul",
    "gated_unit",
    lambda a, b, w: (F.silu(a) * b) @ w,
    MATRIX,
    MATRIX,
    weights=((48, 32),),
)
case(
    "Mul",
    "number_less",
    lambda a, b, w: ((1 - a.sigmoid()) * b - a.sigmoid() * b / 2) @ w,
    MATRIX,
    MATRIX,
    weights=((48, 32),),
)


# Complex numbers
def _complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x)


case("FftR2C", "2d", lambda x: torch.view_as_real(torch.fft.rfft2(x)), IMAGE)
case("FftR2C", "there_and_back", lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2), SEQUENCE)
case("Complex", "parts", lambda x, y: torch.view_as_real(torch.complex(x, y)), MATRIX, MATRIX)
case(
    "Mul",
    "complex_values",
    lambda x, y: torch.view_as_real(_complex(x) * _complex(y)),
    (32, 48, 2),
    (32, 48, 2),
)
case(
    "Mul",
    "conjugate",
    lambda x, y: torch.view_as_real((_complex(x).conj() * _complex(y)).resolve_conj()),
    (32, 48, 2),
    (32, 48, 2),
)
case(
    "LeakyRelu",
    "negative_view",
    lambda x: F.leaky_relu(_complex(x).conj().imag, 0.1),
    (32, 48, 2),
    close=0.0,
    saves=False,
)
case(
    "Mul",
    "negative_view",
    lambda x, y: _complex(x).conj().imag * y + 3 * (_complex(x).imag * y),
    (32, 48, 2),
    (32, 48),
)
case(
    "Bmm",
    "spectral",
    lambda x, w: torch.fft.irfft(
        torch.einsum("bix,iox->box", torch.fft.rfft(x)[..., :20], _complex(w)), n=64
    ),
    (8, 8, 64),
    weights=((8, 6, 20, 2),),
)

# Pooling
case(
    "FractionalMaxPool3D",
    "3d",
    lambda x: F.fractional_max_pool3d(
        x, 2, output_size=5, _random_samples=torch.full((2, 8, 3), 0.3)
    ),
    VOLUME,
)
case(
    "MaxUnpool2D", "2d", lambda x: F.max_unpool2d(*_pooled(x, F.max_pool2d), 2), (8, 8, 16, 16)
)
case(
    "MaxUnpool3D",
    "3d",
    lambda x: F.max_unpool3d(*_pooled(x, F.max_pool3d), 2),
    (8, 8, 8, 8, 8),
)


def _pooled(x: Tensor, pool: object) -> tuple[Tensor, Tensor]:
    return pool(x, 2, return_indices=True)  # type: ignore[operator,no-any-return]


# Integers and truth values
case(
    "EmbeddingBag",
    "sums",
    lambda w: F.embedding_bag(_index(64, 16, high=50), w, mode="sum"),
    weights=((50, 8),),
)
case("IndexCopy", "rows", lambda x, y: x.index_copy(0, _SOME, y), (2048, 4), (1024, 4))
case("IndexFill", "rows", lambda x: x.index_fill(0, _SOME, 0.5), (2048, 4))
case("Put", "flat", lambda x, y: x.put(_SOME, y), (2048, 4), (1024,))
case("MaskedSelect", "mask", lambda x: x.masked_select(_index(128, 48, high=2) > 0), (128, 48))
case(
    "MaskedScatter",
    "mask",
    lambda x, y: x.masked_scatter(_index(128, 48, high=2) > 0, y),
    (128, 48),
    (128, 48),
)
case("Cummax", "dim", lambda x: x.cummax(1).values, ROWS)
case("Cummin", "dim", lambda x: x.cummin(1).values, ROWS)
case("Nanmedian", "dim", lambda x: x.nanmedian(dim=1).values, (700, 5))
_SOME = torch.randperm(2048, generator=torch.Generator().manual_seed(3))[:1024]
case(
    "NllLoss",
    "classes",
    lambda x: F.nll_loss(x, _index(1024, high=10)) * 100,
    (1024, 10),
)
case(
    "NllLoss2D",
    "pixels",
    lambda x: F.nll_loss(x, _index(4, 16, 16, high=8)) * 100,
    IMAGE,
)
case(
    "PackPaddedSequence",
    "lengths",
    lambda x: torch.nn.utils.rnn.pack_padded_sequence(x, torch.full((2,), 700)).data,
    (700, 2, 3),
)
case("UnsafeIndex", "rows", lambda x: aten._unsafe_index(x, [_index(700, high=64)]), ROWS)
case(
    "UnsafeIndexPut",
    "rows",
    lambda x, y: aten._unsafe_index_put(x, [_index(700, high=64)], y, True),
    ROWS,
    (700, 48),
)
for _reduce in ("sum", "mean", "amax"):
    case(
        "ScatterReduce",
        _reduce,
        lambda x, y, r=_reduce: x.scatter_reduce(1, _index(64, 40, high=48), y, r),
        ROWS,
        (64, 40),
    )
case(
    "IndexReduce",
    "mean",
    lambda x, y: x.index_reduce(0, _index(700, high=64), y, "mean"),
    ROWS,
    (700, 48),
)
case(
    "FakeQuantizePerTensorAffineCachemask",
    "bytes",
    lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7),
    (128, 48),
)
case(
    "FakeQuantizePerTensorAffineCachemaskTensorQparams",
    "bytes",
    lambda x: torch.fake_quantize_per_tensor_affine(
        x, torch.tensor(0.1), torch.tensor(0, dtype=torch.int32), -8, 7
    ),
    (128, 48),
)
case(
    "FakeQuantizePerChannelAffineCachemask",
    "bytes",
    lambda x: torch.fake_quantize_per_channel_affine(
        x, torch.full((128,), 0.1), torch.zeros(128, dtype=torch.int32), 0, -8, 7
    ),
    (128, 48),
)

_CUDA = (
    "CudnnConvolutionTranspose ConvDepthwise2D ConvDepthwise3D CudnnGridSampler FlashAttention "
    "EfficientAttention CudnnAttention ThnnFusedLstmCell ThnnFusedGruCell FusedDropout"
)
_ROCM = "MiopenConvolution MiopenConvolutionTranspose MiopenDepthwiseConvolution"
ELSEWHERE |= {
    **dict.fromkeys(_CUDA.split(), "needs CUDA"),
    **dict.fromkeys(_ROCM.split(), "needs ROCm"),
    **dict.fromkeys(("MpsConvolution", "MpsConvolutionTranspose"), "needs MPS"),
    "ScaledDotProductFusedAttentionOverrideable": "needs a device outside torch",
    "NnpackSpatialConvolution": "needs NNPACK",
    "GridSampler2DCpuFallback": "for grids that GridSampler2D's own kernel cannot index",
    "Matmul": "for nested tensors; elsewhere a product is Mm, Bmm or Addmm",
    "IndexPutImpl": "called by the backward of others only",
    "UnsafeMaskedIndex": "made by torch.compile only",
    "UnsafeMaskedIndexPutAccumulate": "made by torch.compile only",
    "FusedMovingAvgObsFqHelper": "a quantiser with an observer's state",
    "CheckpointFunction": "not for torch.autograd.grad: see test_recomputed.py",
    "SharedEmbedding": "made by encke.head: see test_head.py",
}

_OTHER_DTYPES = (
    "SafeSoftmax-attention_with_dropout",
    "Pow-gelu_written_out",
    "Mul-rms_norm_written_out",
    "Mul-gated_unit",
    "Mul-number_less",
    "NativeGroupNorm-silu_conv",
    "Clamp-strange",
    "Softshrink-strange",
)
CASES += [
    Case(**{**c.__dict__, "name": f"{c.name}-{str(dtype).split('.')[1]}", "dtype": dtype})
    for dtype in (torch.float64, torch.float16, torch.bfloat16)
    for c in list(CASES)
    if str(c) in _OTHER_DTYPES
]
CASES += [
    Case(**{**c.__dict__, "name": f"{c.name}-float64", "dtype": torch.float64})
    for c in list(CASES)
    if str(c) in ("FftR2C-there_and_back", "Mul-complex_values", "Mul-conjugate")
]
