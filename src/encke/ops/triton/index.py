"""`index` on the device: what the host does around its kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.reference.index import CHUNK, ENTRY_BYTES
from encke.ops.triton.kernels import index as kernels
from encke.ops.triton.kernels.lookback import HEAD
from encke.ops.triton.later import Later
from encke.ops.triton.launch import launch, on

#: Warps of a program that encodes a chunk: 16 values a thread.
WARPS = 16
#: Groups of 32 that a program decodes, and its warps: 8 values a thread.
ROWS, ROWS_WARPS = 32, 4


def most_bytes(count: int, dtype: torch.dtype) -> int:
    """The longest payload of `count` integers: every code as wide as the dtype."""
    return ENTRY_BYTES * -(-count // CHUNK) + count * dtype.itemsize


def encode(x: Tensor, *, capacity: int | None = None) -> Later:
    """The payload of x, in a buffer of `capacity` bytes, without waiting for the device."""
    count, device = x.numel(), x.device
    chunks = -(-count // CHUNK)
    room = most_bytes(count, x.dtype) if capacity is None else capacity
    payload = torch.empty(room, dtype=torch.uint8, device=device)
    state = torch.zeros(HEAD.value + chunks, dtype=torch.int64, device=device)
    with on(x):
        launch(
            kernels.encode,
            chunks,
            x.view(-1),
            payload,
            state,
            count,
            chunks,
            room,
            warps=WARPS,
            WIDE=x.dtype == torch.int64,
        )
    needed = state[1] + ENTRY_BYTES * chunks
    return Later(payload, needed, lambda size: encode(x, capacity=size))


def decode(payload: Tensor, count: int, dtype: torch.dtype, *, known: bool) -> Tensor:
    """The integers of a payload; one that was made here is not checked."""
    chunks = -(-count // CHUNK)
    if payload.numel() < ENTRY_BYTES * chunks or (count == 0 and payload.numel()):
        raise CorruptStreamError(
            f"index has {payload.numel()} bytes, the table of {count} values alone "
            f"takes {ENTRY_BYTES * chunks}"
        )
    out = torch.empty(count, dtype=dtype, device=payload.device)
    if count == 0:
        return out
    payload = payload.contiguous()
    widths = payload[8 * chunks : ENTRY_BYTES * chunks].to(torch.int64)
    bits = widths * CHUNK
    bits[-1] = widths[-1] * (count - (chunks - 1) * CHUNK)
    ends = torch.full((chunks + 1,), ENTRY_BYTES * chunks, device=payload.device)
    ends[1:] += ((bits + 7) // 8).cumsum(0)
    if not known:
        _check(payload, widths, bits[-1], ends[-1], dtype)
    groups = -(-count // 32)
    with on(payload):
        launch(
            kernels.decode,
            -(-groups // ROWS),
            payload,
            ends,
            out,
            count,
            chunks,
            payload.numel(),
            warps=ROWS_WARPS,
            WIDE=dtype == torch.int64,
            ROWS=ROWS,
        )
    return out


def _check(
    payload: Tensor, widths: Tensor, last_bits: Tensor, end: Tensor, dtype: torch.dtype
) -> None:
    limits = torch.iinfo(dtype)
    bases = payload[: 8 * widths.numel()].clone().view(torch.int64)
    # Only the last chunk can end within a byte.
    used = last_bits % 8
    behind = torch.where(used > 0, payload[-1].to(torch.int64) >> used, 0)
    outside = (bases < limits.min) | (bases > limits.max)
    findings = [
        outside.any(),
        (widths > 8 * dtype.itemsize).any(),
        end != payload.numel(),
        behind != 0,
    ]
    base, width, length, tail = torch.stack(findings).tolist()
    if base:
        raise CorruptStreamError(f"index has a base outside {dtype}")
    if width:
        raise CorruptStreamError(f"index has codes wider than {dtype}")
    if length:
        raise CorruptStreamError(
            f"index has {payload.numel()} bytes, its widths say something else"
        )
    if tail:
        raise CorruptStreamError("index has bits set behind its last code")
