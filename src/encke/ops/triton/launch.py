"""How a kernel is started, and how numbers travel to it."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import torch
from torch import Tensor

#: The format's id of a dtype, which kernels know as DTYPE.
FLOATS: dict[torch.dtype, int] = {
    torch.float32: 1,
    torch.float64: 2,
    torch.float16: 3,
    torch.bfloat16: 4,
}
_PATTERN = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def pattern(x: Tensor) -> Tensor:
    """Floats as integers of the same bits: kernels move NaNs as they are."""
    return x.view(-1).view(_PATTERN[x.element_size()])


def pattern_like(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for `count` patterns of `dtype`."""
    return torch.empty(count, dtype=_PATTERN[dtype.itemsize], device=device)


def double_bits(number: float) -> int:
    """The bits of a binary64 number as a signed integer: a float argument would be rounded.

    >>> double_bits(1.0) == 0x3FF0_0000_0000_0000
    True
    """
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def signed(number: int) -> int:
    """An unsigned 64-bit number as the signed one of the same bits.

    >>> signed(2**64 - 1)
    -1
    """
    number &= 0xFFFF_FFFF_FFFF_FFFF
    return number - (number >> 63 << 64)


def on(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Triton starts kernels on the current device: make it the tensor's."""
    if x.device.type in ("cuda", "xpu"):
        return torch.get_device_module(x.device.type).device(x.device)  # type: ignore[no-any-return]
    return contextlib.nullcontext()


def launch(kernel: Any, programs: int, *arguments: Any, warps: int, **constants: Any) -> None:
    """Run `programs` of a kernel.

    A product and a sum are two roundings in the format: fused multiply-adds are off. Nothing
    is started for no programs.
    """
    if programs > 0:
        kernel[(programs,)](*arguments, num_warps=warps, enable_fp_fusion=False, **constants)
