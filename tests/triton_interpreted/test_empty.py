"""Tensors without values: no kernel is launched on them, and none is trusted to be one."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import encke
from encke.codec import Packed
from encke.errors import CorruptStreamError
from encke.ops.select import load

SHAPES = [(0,), (3, 0), (0, 4, 5), (2, 3, 0, 4)]
BOUNDS = {
    "fixed": encke.Absolute(1e-2),
    "entropy": encke.Absolute(1e-2),
    "predict": encke.Absolute(1e-2),
    "group": encke.FixedRate(4),
    "mask": encke.Lossless(),
    "index": encke.Lossless(),
}
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
CASES = [
    pytest.param(codec, dtype, id=f"{codec}-{str(dtype).removeprefix('torch.')}")
    for codec in BOUNDS
    for dtype in {"mask": [torch.bool], "index": INTEGERS}.get(codec, FLOATS)
]


@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_a_tensor_without_values_comes_back(codec: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x = torch.empty(shape, dtype=dtype)
        packed = encke.compress(x, BOUNDS[codec], codec=codec, backend="triton")
        for found in (packed, Packed.from_bytes(packed.to_bytes())):
            for backend in ("triton", "reference"):
                y = found.decompress(backend=backend)
                assert (y.shape, y.dtype) == (x.shape, x.dtype)
        assert packed.decompress(out=x, backend="triton") is x


@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_a_payload_with_values_is_refused_where_the_shape_has_none(
    codec: str, dtype: torch.dtype
) -> None:
    x = torch.arange(60).sin().mul(40)
    full = x > 0 if dtype == torch.bool else x.abs().to(dtype)
    packed = encke.compress(full, BOUNDS[codec], codec=codec, backend="reference")
    for shape in SHAPES:
        order = tuple(range(len(shape)))
        claims = dataclasses.replace(packed, shape=shape, order=order)
        with pytest.raises(CorruptStreamError):
            Packed.from_bytes(claims.to_bytes()).decompress(backend="triton")


def test_norms_behind_relu_take_tensors_without_values() -> None:
    kernels = load("triton")
    for shape, channels, inner in (((0, 3, 4), 3, 4), ((2, 3, 0), 3, 0), ((2, 0, 4), 0, 4)):
        x, one = torch.empty(shape), torch.ones(channels)
        bits = kernels.positive_encode(x)
        assert kernels.affine_where(x, bits, one, one, inner).shape == x.shape
        values, _ = kernels.gated_close(x, bits, one, one, inner)
        back = kernels.gated_open(values, bits, (one, one, one), inner, shape)
        assert back.shape == x.shape
