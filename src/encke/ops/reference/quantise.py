"""Values to codes and back (docs/format.md, section 4), one IEEE rounding an operation."""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.quantiser import DITHER, HALF, PLAIN, POINTWISE, Quantiser
from encke.ops.reference import dither

PARAMETER_BYTES = 32

#: The integer type in which a dtype's bit pattern is read.
PATTERN: dict[torch.dtype, torch.dtype] = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}

_HALVES = (torch.float16, torch.bfloat16)
#: Above every pattern of a finite value, and with room for a code below 2^63.
_BASE_CEILING = 2**63 - 2**32


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    """The precision in which the codes of `dtype` are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def write_parameters(q: Quantiser, own: bytes = bytes(7)) -> bytes:
    """The 32 bytes that start a payload; `own` are the codec's seven."""
    seed = q.seed if q.kind in (DITHER, POINTWISE) else 0
    return struct.pack("<B7sddQ", q.kind, own, q.step0, q.step1, seed)


def read_parameters(payload: Tensor, dtype: torch.dtype) -> tuple[Quantiser, bytes]:
    """What `write_parameters` wrote, the limits unknown (0), and the codec's bytes."""
    if payload.numel() < PARAMETER_BYTES:
        raise CorruptStreamError(
            f"payload has {payload.numel()} bytes, its parameters alone take {PARAMETER_BYTES}"
        )
    head = bytes(payload[:PARAMETER_BYTES].tolist())
    kind, own, step0, step1, seed = struct.unpack("<B7sddQ", head)
    if kind not in (PLAIN, HALF, DITHER, POINTWISE):
        raise CorruptStreamError(f"payload has quantiser kind {kind}, allowed are 0 to 3")
    for step in (step0, step1):
        if not (math.isfinite(step) and step >= 0.0) or not _representable(step, dtype):
            raise CorruptStreamError(
                f"payload has step {step!r}; it must be finite, not negative and exact "
                f"in {arithmetic(dtype)}"
            )
    if kind == POINTWISE and seed == 0:
        raise CorruptStreamError("payload has divisor 0 in kind pointwise, allowed is >= 1")
    if kind in (PLAIN, HALF) and seed != 0:
        raise CorruptStreamError(f"payload has a seed of {seed} in kind {kind}, allowed is 0")
    return Quantiser(kind, step0, step1, 0.0, 0.0, seed), own


def _representable(step: float, dtype: torch.dtype) -> bool:
    return arithmetic(dtype) == torch.float64 or torch.tensor(step).item() == step


def pattern(x: Tensor) -> Tensor:
    """The bits of floats as signed integers of the same size."""
    return x.view(PATTERN[x.dtype])


def dither_of(q: Quantiser, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """u for every index in kind dither, else the one number that all share."""
    if q.kind == DITHER:
        return dither.offsets(q.seed, count, arithmetic(dtype), device)
    shared = 0.5 if q.kind == HALF else 0.0
    return torch.tensor(shared, dtype=arithmetic(dtype), device=device)


def linear_codes(x: Tensor, kind: int, step: float, u: Tensor) -> Tensor:
    """rint(x / step + u) as int32, where `x` is within the limit that goes with `step`.

    A step of 0 belongs to an empty tier, whose limit is 0: every code is then 0.
    """
    if step == 0.0:
        return torch.zeros(x.shape, dtype=torch.int32, device=x.device)
    precision = arithmetic(x.dtype)
    one = torch.ones((), dtype=precision, device=x.device)
    inverse = one / torch.tensor(step, dtype=precision, device=x.device)
    scaled = x.to(precision) * inverse
    if kind != PLAIN:
        scaled = scaled + u
    return torch.round(scaled).to(torch.int32)


def linear_values(
    codes: Tensor, kind: int, step: float, u: Tensor, dtype: torch.dtype
) -> Tensor:
    """(c - u) * step in `dtype`; what has a code is never zero in kinds half and dither."""
    precision = arithmetic(dtype)
    scaled = codes.to(torch.int32).to(precision)
    if kind != PLAIN:
        scaled = scaled - u
    y = scaled * torch.tensor(step, dtype=precision, device=codes.device)
    if dtype not in _HALVES:
        return y
    rounded = y.to(dtype)
    if kind == PLAIN:
        return rounded
    smallest = torch.ones(y.shape, dtype=torch.int16, device=y.device).view(dtype)
    smallest = torch.where(torch.signbit(y), -smallest, smallest)
    return torch.where(rounded == 0, smallest, rounded)


def largest_pattern(dtype: torch.dtype) -> int:
    """The bit pattern of the largest finite value."""
    return int(pattern(torch.tensor([torch.finfo(dtype).max], dtype=dtype)).item())


def pointwise_codable(x: Tensor) -> Tensor:
    """Where a value has a pointwise code: normal numbers; not 0, subnormal, Inf or NaN."""
    smallest_normal = torch.finfo(x.dtype).tiny
    return torch.isfinite(x) & (x.abs() >= smallest_normal)


def pointwise_levels(x: Tensor, divisor: int) -> Tensor:
    """k of each value as int64 (meaningless where a value has no code)."""
    b = pattern(x).to(torch.int64) & (2 ** (8 * x.dtype.itemsize - 1) - 1)
    levels: Tensor = (b + divisor // 2) // divisor
    return levels


def pointwise_values(
    codes: Tensor, base: Tensor | int, divisor: int, dtype: torch.dtype
) -> Tensor:
    """The values of codes 2 (k - base) + sign; a tensor of bases holds u64 bits as int64."""
    largest = largest_pattern(dtype)
    divisor = min(divisor, largest)
    if isinstance(base, int):
        base = torch.tensor(min(base, _BASE_CEILING), device=codes.device)
    else:
        beyond = (base < 0) | (base > _BASE_CEILING)
        base = torch.where(beyond, torch.full_like(base, _BASE_CEILING), base)
    levels = base + (codes.to(torch.int64) >> 1)
    if bool((levels < 0).any()):
        raise CorruptStreamError("payload has a pointwise code below zero magnitude")
    saturated = levels > largest // divisor
    magnitude = torch.where(saturated, 0, levels) * divisor
    magnitude = torch.where(saturated, largest, magnitude)
    y = magnitude.to(PATTERN[dtype]).view(dtype)
    return torch.where((codes & 1).to(torch.bool), -y, y)
