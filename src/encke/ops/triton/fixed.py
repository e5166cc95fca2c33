"""`fixed` on the device: what the host does around its kernels."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.quantiser import DITHER, POINTWISE, Quantiser
from encke.ops.reference.quantise import PARAMETER_BYTES, read_parameters, write_parameters
from encke.ops.triton.kernels import fixed_decode, fixed_encode
from encke.ops.triton.kernels.lookback import HEAD
from encke.ops.triton.later import Later
from encke.ops.triton.launch import (
    FLOATS,
    double_bits,
    launch,
    on,
    pattern,
    pattern_like,
    signed,
)

BLOCK, CHUNK = 32, 8192
_BLOCKS = CHUNK // BLOCK
#: Chunks that one program of `walk` goes through side by side.
WALKED = 32


#: Warps of a program that encodes a chunk: 16 values a thread.
WARPS = 16
#: Blocks that a program decodes, and its warps: 8 values a thread.
ROWS, ROWS_WARPS = 32, 4


def most_bytes(count: int, dtype: torch.dtype) -> int:
    """The longest payload that `count` values can have: every block raw.

    A coded block is never longer: 30 planes of bits are below 32 raw values of 4 bytes, and
    codes of 16-bit values have at most 14 bits, of which some positions may be missing.
    """
    chunks, blocks = -(-count // CHUNK), -(-count // BLOCK)
    widest = max(dtype.itemsize * BLOCK, 4 * 30 + 4 + 8)
    return PARAMETER_BYTES + 4 * chunks + blocks * (1 + widest)


def encode(
    x: Tensor, q: Quantiser, *, capacity: int | None = None, statistics: Tensor | None = None
) -> Later:
    """The payload of x, in a buffer of `capacity` bytes, without waiting for the device."""
    count, device = x.numel(), x.device
    if count == 0:
        head = torch.frombuffer(bytearray(write_parameters(q)), dtype=torch.uint8).to(device)
        size = torch.tensor(head.numel(), device=device)
        return Later(head, size, functools.partial(_never, head))
    room = most_bytes(count, x.dtype) if capacity is None else capacity
    chunks = -(-count // CHUNK)
    payload = torch.empty(room, dtype=torch.uint8, device=device)
    state = torch.zeros(HEAD.value + chunks, dtype=torch.int64, device=device)
    seed = q.seed if q.kind in (DITHER, POINTWISE) else 0
    with on(x):
        launch(
            fixed_encode.encode,
            chunks,
            pattern(x),
            payload,
            state,
            payload if statistics is None else statistics,
            count,
            chunks,
            room,
            double_bits(q.step0),
            double_bits(q.step1),
            double_bits(_inverse(q.step0, x.dtype)),
            double_bits(_inverse(q.step1, x.dtype)),
            double_bits(q.limit0),
            double_bits(q.limit1),
            signed(seed),
            warps=WARPS,
            KIND=q.kind,
            DTYPE=FLOATS[x.dtype],
            SIZE=x.element_size(),
            STATISTICS=statistics is not None,
        )
    needed = state[1] + (PARAMETER_BYTES + 4 * chunks)
    return Later(payload, needed, lambda size: encode(x, q, capacity=size))


def _never(head: Tensor, size: int) -> Later:
    raise AssertionError(f"a payload of {head.numel()} bytes cannot need {size}")


def _inverse(step: float, dtype: torch.dtype) -> float:
    """1 / step, rounded once in the arithmetic's precision; 0 for an empty tier."""
    if step == 0.0:
        return 0.0
    return 1.0 / step if dtype == torch.float64 else float(np.float32(1) / np.float32(step))


def decode(
    payload: Tensor,
    count: int,
    dtype: torch.dtype,
    *,
    known: Quantiser | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The values of a payload. `known` is the quantiser of one that was made here: then
    nothing is checked and the host does not wait."""
    q = known
    if q is None:
        q, own = read_parameters(payload, dtype)
        if any(own):
            raise CorruptStreamError(
                f"payload has parameter bytes {own.hex()}, allowed are zeros"
            )
    chunks, blocks = -(-count // CHUNK), -(-count // BLOCK)
    rest = payload.numel() - PARAMETER_BYTES
    if rest < 4 * chunks + blocks or (count == 0 and rest):
        raise CorruptStreamError(
            f"payload has {rest} bytes after its parameters, {count} values take "
            f"{'none' if count == 0 else f'at least {4 * chunks + blocks}'}"
        )
    values = pattern_like(count, dtype, payload.device) if out is None else pattern(out)
    if count:
        payload = payload.contiguous()
        ends = _ends(payload, chunks)
        starts, wrong = _walk(payload, ends, count, q.kind, dtype)
        with on(payload):
            launch(
                fixed_decode.decode,
                -(-blocks // ROWS),
                payload,
                ends,
                starts,
                wrong,
                values,
                count,
                payload.numel(),
                double_bits(q.step0),
                double_bits(q.step1),
                signed(q.seed),
                warps=ROWS_WARPS,
                KIND=q.kind,
                DTYPE=FLOATS[dtype],
                SIZE=dtype.itemsize,
                ROWS=ROWS,
            )
        if known is None and bool((wrong.any() | (ends[-1] != payload.numel())).item()):
            raise CorruptStreamError(
                "payload has a chunk whose blocks break a rule or do not fill its length"
            )
    return values.view(dtype) if out is None else out


def _ends(payload: Tensor, chunks: int) -> Tensor:
    """Where the chunks end, counted from the payload's start, after where the first begins."""
    first = PARAMETER_BYTES + 4 * chunks
    table = payload[PARAMETER_BYTES:first].clone().view(torch.int32).to(torch.int64)
    ends = torch.full((chunks + 1,), first, dtype=torch.int64, device=payload.device)
    ends[1:] += (table & 0xFFFF_FFFF).cumsum(0)
    return ends


def _walk(
    payload: Tensor, ends: Tensor, count: int, kind: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    chunks = ends.numel() - 1
    starts = torch.empty(chunks * _BLOCKS, dtype=torch.int32, device=payload.device)
    wrong = torch.empty(chunks, dtype=torch.int32, device=payload.device)
    with on(payload):
        launch(
            fixed_decode.walk,
            -(-chunks // WALKED),
            payload,
            ends,
            starts,
            wrong,
            count,
            chunks,
            payload.numel(),
            warps=1,
            KIND=kind,
            SIZE=dtype.itemsize,
            CHUNKS=WALKED,
        )
    return starts, wrong
