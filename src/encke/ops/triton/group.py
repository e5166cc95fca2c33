"""`group` on the device: what the host does around its kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.reference.group import GROUP, HEADER_BYTES, RATES, arithmetic, beyond
from encke.ops.triton.kernels import group as kernels
from encke.ops.triton.later import Later
from encke.ops.triton.launch import FLOATS, launch, on, pattern, pattern_like, signed

#: Warps of a program, which does eight groups: 16 values a thread.
WARPS = 4
_EIGHT = 8


def _head_bytes(groups: int, dtype: torch.dtype) -> int:
    """Bytes before the codes: header, flags, and two numbers a group."""
    return HEADER_BYTES + -(-groups // 8) + groups * 2 * arithmetic(dtype).itemsize


def plain_bytes(count: int, bits: int, dtype: torch.dtype) -> int:
    """The length of a payload none of whose groups is verbatim."""
    return _head_bytes(-(-count // GROUP), dtype) + -(-count * bits // 8)


def encode(x: Tensor, bits: int, stochastic: bool, seed: int) -> Later:
    """The payload of x if no group must be verbatim, without waiting for the device.

    If one must, the payload needs more room than that, and settling encodes again.
    """
    count = x.numel()
    room = plain_bytes(count, bits, x.dtype)
    payload = torch.empty(room, dtype=torch.uint8, device=x.device)
    if count == 0:
        payload.copy_(torch.tensor([bits, int(stochastic), *[0] * 6], dtype=torch.uint8))
        raw = torch.zeros(0, dtype=torch.int32, device=x.device)
    else:
        raw = _run(x, bits, stochastic, seed, payload, None)
    coded, verbatim = _sizes(raw, count, bits, x.dtype)
    needed = _head_bytes(-(-count // GROUP), x.dtype) + coded + verbatim

    def again(size: int) -> Later:
        larger = torch.empty(size, dtype=torch.uint8, device=x.device)
        _run(x, bits, stochastic, seed, larger, (raw, int(coded)))
        return Later(larger, needed, again)

    return Later(payload, needed, again)


def _run(
    x: Tensor,
    bits: int,
    stochastic: bool,
    seed: int,
    payload: Tensor,
    placed: tuple[Tensor, int] | None,
) -> Tensor:
    """Encode; `placed` are the verbatim groups and the bytes of codes, if they are known."""
    count = x.numel()
    groups = -(-count // GROUP)
    raw = torch.empty(groups, dtype=torch.int32, device=x.device)
    before = raw if placed is None else _before(placed[0])
    with on(x):
        launch(
            kernels.encode,
            -(-groups // _EIGHT),
            pattern(x),
            payload,
            raw,
            before,
            count,
            groups,
            signed(seed),
            0 if placed is None else placed[1],
            warps=WARPS,
            BITS=bits,
            STOCHASTIC=int(stochastic),
            DTYPE=FLOATS[x.dtype],
            SIZE=x.element_size(),
            PLACED=placed is not None,
        )
    return raw


def _before(raw: Tensor) -> Tensor:
    """How many groups before each are verbatim."""
    return raw.cumsum(0, dtype=torch.int64) - raw


def _sizes(raw: Tensor, count: int, bits: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Bytes of the codes and of the verbatim values, on the device."""
    values = raw.sum(dtype=torch.int64) * GROUP
    if count % GROUP:
        values = values - raw[-1] * (GROUP - count % GROUP)
    return ((count - values) * bits + 7) // 8, values * dtype.itemsize


def decode(payload: Tensor, count: int, dtype: torch.dtype, *, known: int | None) -> Tensor:
    """The values of a payload. `known` is the number of bits of one that was made here and
    has no verbatim group: then nothing is checked and the host does not wait."""
    groups = -(-count // GROUP)
    head = _head_bytes(groups, dtype)
    if payload.numel() < head:
        raise CorruptStreamError(
            f"group payload has {payload.numel()} bytes, the parameters of {count} values "
            f"alone take {head}"
        )
    payload = payload.contiguous()
    raw = _flags(payload, groups)
    if known is not None:
        bits, code_bytes = known, -(-count * known // 8)
    else:
        bits = _bits(payload)
        code_bytes = _check(payload, raw, count, bits, dtype)
    out = pattern_like(count, dtype, payload.device)
    with on(payload):
        launch(
            kernels.decode,
            -(-groups // _EIGHT),
            payload,
            raw,
            _before(raw),
            out,
            count,
            groups,
            payload.numel(),
            code_bytes,
            warps=WARPS,
            BITS=bits,
            DTYPE=FLOATS[dtype],
            SIZE=dtype.itemsize,
        )
    return out.view(dtype)


def _flags(payload: Tensor, groups: int) -> Tensor:
    flags = payload[HEADER_BYTES : HEADER_BYTES + -(-groups // 8)].to(torch.int32)
    places = torch.arange(8, dtype=torch.int32, device=payload.device)
    return ((flags.view(-1, 1) >> places) & 1).view(-1)[:groups]


def _bits(payload: Tensor) -> int:
    bits, rounding, *zeros = payload[:HEADER_BYTES].tolist()
    if bits not in RATES or rounding > 1 or any(zeros):
        raise CorruptStreamError(f"group payload has {bits} bits a code, allowed are {RATES}")
    return int(bits)


def _check(payload: Tensor, raw: Tensor, count: int, bits: int, dtype: torch.dtype) -> int:
    """Every rule of a payload, looked at in one wait; the bytes of codes."""
    groups, head = raw.numel(), _head_bytes(raw.numel(), dtype)
    flags_end = HEADER_BYTES + -(-groups // 8)
    real = arithmetic(dtype)
    low, step = payload[flags_end:head].clone().view(real).view(groups, 2).unbind(1)
    coded, verbatim = _sizes(raw, count, bits, dtype)
    # The bits behind the last flag and, read inside the payload only, behind the last code.
    used = ((count * bits - verbatim // dtype.itemsize * bits) % 8).to(torch.int64)
    last = (head + coded - 1).clamp(0, payload.numel() - 1)
    behind = torch.where(used > 0, payload[last].to(torch.int64) >> used, 0)
    if groups % 8:
        behind = behind | (payload[flags_end - 1].to(torch.int64) >> groups % 8)
    length = head + coded + verbatim
    wrong = beyond(low, step, bits, dtype).any().to(torch.int64)
    impossible, behind_last, size, code_bytes = torch.stack(
        [wrong, behind, length, coded]
    ).tolist()
    if impossible:
        raise CorruptStreamError(f"group payload has a minimum or step beyond {dtype}")
    if size != payload.numel():
        raise CorruptStreamError(
            f"group payload has {payload.numel()} bytes, its parameters say {size}"
        )
    if behind_last:
        raise CorruptStreamError("group payload has bits set behind its last code")
    return int(code_bytes)
