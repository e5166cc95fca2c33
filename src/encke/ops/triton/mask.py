"""`mask` on the device, and the bits that ReLU's backward needs."""

from __future__ import annotations

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.reference import sides
from encke.ops.triton.kernels import mask as kernels
from encke.ops.triton.launch import FLOATS, launch, on, pattern, pattern_like

#: Bytes of bits that a program handles, and its warps: 16 values a thread.
ROWS, WARPS = 256, 4
_ONE = {
    torch.float32: 0x3F800000,
    torch.float64: 0x3FF0000000000000,
    torch.float16: 0x3C00,
    torch.bfloat16: 0x3F80,
}


def encode(x: Tensor) -> Tensor:
    """One bit for each truth value of x."""
    return _packed(x.view(-1).view(torch.uint8), x, 0)


def positive_encode(x: Tensor) -> Tensor:
    """One bit for each value of x: 1 unless x <= 0."""
    return _packed(pattern(x), x, FLOATS[x.dtype])


def _packed(values: Tensor, x: Tensor, dtype: int) -> Tensor:
    count = x.numel()
    payload = torch.empty(-(-count // 8), dtype=torch.uint8, device=x.device)
    programs = -(-payload.numel() // ROWS)
    with on(x):
        launch(
            kernels.pack, programs, values, payload, count, warps=WARPS, DTYPE=dtype, ROWS=ROWS
        )
    return payload


def decode(payload: Tensor, count: int, *, known: bool) -> Tensor:
    """The truth values of a payload."""
    check(payload, count, known=known)
    out = torch.empty(count, dtype=torch.bool, device=payload.device)
    _unpacked(payload, out.view(torch.uint8), count, 1)
    return out


def positive_decode(payload: Tensor, count: int, dtype: torch.dtype, *, known: bool) -> Tensor:
    """1 and 0, as `dtype`."""
    check(payload, count, known=known)
    out = pattern_like(count, dtype, payload.device)
    _unpacked(payload, out, count, _ONE[dtype])
    return out.view(dtype)


def _unpacked(payload: Tensor, values: Tensor, count: int, one: int) -> None:
    programs = -(-payload.numel() // ROWS)
    with on(payload):
        launch(
            kernels.unpack, programs, payload, values, count, warps=WARPS, ONE=one, ROWS=ROWS
        )


def check(payload: Tensor, count: int, *, known: bool) -> None:
    """Refuse a payload that is not one of `count` values; what was made here is not read."""
    if payload.numel() != -(-count // 8):
        raise CorruptStreamError(
            f"mask has {payload.numel()} bytes, {count} values take {-(-count // 8)}"
        )
    if not known and count % 8 and int(payload[-1]) >> (count % 8):
        raise CorruptStreamError("mask has bits set behind its last value")


def affine_where(
    x: Tensor, payload: Tensor, gain: Tensor, shift: Tensor, inner: int, *, known: bool
) -> Tensor:
    """bit ? x · gain[c] + shift[c] : 0. Other dtypes than float32 go the reference's way."""
    plain = gain.dtype == shift.dtype == x.dtype == torch.float32 and x.is_contiguous()
    if not plain:
        return sides.affine_where(x, payload, gain, shift, inner)
    check(payload, x.numel(), known=known)
    out = torch.empty_like(x)
    rows = ROWS * 8
    with on(x):
        launch(
            kernels.affine,
            -(-x.numel() // rows),
            x,
            payload,
            gain.contiguous(),
            shift.contiguous(),
            out,
            x.numel(),
            gain.numel(),
            inner,
            warps=WARPS,
            ROWS=rows,
        )
    return out
