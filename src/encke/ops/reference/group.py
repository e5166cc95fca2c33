"""`group`: min-max quantisation, 256 values at a time (docs/format.md, section 9)."""

from __future__ import annotations

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.reference import dither

GROUP = 256
HEADER_BYTES = 8
RATES = (1, 2, 4, 8)

#: The ranges that are coded. Below, all codes are 0; above, the group is kept verbatim.
LEAST_RANGE = {torch.float32: 2.0**-118, torch.float64: 2.0**-1000}
MOST_RANGE = {torch.float32: 2.0**120, torch.float64: 2.0**1000}

#: From here on a number rounds to infinity in the dtype.
_CEILING = {torch.float16: 65520.0, torch.bfloat16: float.fromhex("0x1.FFp127")}


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    """The dtype that values of `dtype` are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def encode(x: Tensor, bits: int, stochastic: bool, seed: int) -> Tensor:
    """The payload of the values `x`, on their device."""
    x = x.reshape(-1)
    count, device, real = x.numel(), x.device, arithmetic(x.dtype)
    head = torch.tensor([bits, int(stochastic), *[0] * 6], dtype=torch.uint8, device=device)
    if count == 0:
        return head
    groups, levels = -(-count // GROUP), 2**bits - 1
    values = torch.empty(groups * GROUP, dtype=real, device=device)
    values[:count] = x
    values[count:] = values[(groups - 1) * GROUP]
    values = values.view(groups, GROUP)
    low, high = values.amin(1), values.amax(1)
    span = high - low
    raw = ~values.isfinite().all(1) | ~(span <= MOST_RANGE[real])
    low, span = (torch.where(raw, 0.0, v) for v in (low + 0.0, span))
    coded = span >= LEAST_RANGE[real]
    # Dividing two tensors of one dtype: one correctly rounded operation.
    top = torch.full_like(span, levels)
    step = torch.where(coded, span / top, span)
    inverse = top / torch.where(coded, span, 1.0)

    u: Tensor | float = 0.5
    if stochastic:
        m = dither.integers(seed, groups * GROUP, device)
        u = ((2 * m + 1).to(real) * 2.0**-17).view(groups, GROUP)
    codes = ((values - low.view(-1, 1)) * inverse.view(-1, 1) + u).floor()
    codes = torch.where(coded.view(-1, 1), codes.nan_to_num(0.0).clamp(0, levels), 0.0)
    codes = codes.to(torch.uint8).view(-1)
    codes[count:] = 0

    coded_groups, raw_values = (~raw).repeat_interleave(GROUP), raw.repeat_interleave(GROUP)
    kept = codes[:count][coded_groups[:count]]
    return torch.cat(
        [
            head,
            _pack(raw.to(torch.uint8), 1),
            torch.stack([low, step], 1).view(-1).view(torch.uint8),
            _pack(kept, bits),
            x[raw_values[:count]].view(torch.uint8),
        ]
    )


def decode(payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """`count` values, or `CorruptStreamError`, whatever the payload."""
    real, device = arithmetic(dtype), payload.device
    groups = -(-count // GROUP)
    flags_end = HEADER_BYTES + -(-groups // 8)
    head_end = flags_end + groups * 2 * real.itemsize
    if payload.numel() < head_end:
        raise CorruptStreamError(
            f"group payload has {payload.numel()} bytes, the parameters of {count} values "
            f"alone take {head_end}"
        )
    bits, rounding, *zeros = payload[:HEADER_BYTES].tolist()
    if bits not in RATES or rounding > 1 or any(zeros):
        raise CorruptStreamError(f"group payload has {bits} bits a code, allowed are {RATES}")
    raw = _unpack(payload[HEADER_BYTES:flags_end], groups, 1).to(torch.bool)
    low, step = payload[flags_end:head_end].clone().view(real).view(groups, 2).unbind(1)
    if bool(beyond(low, step, bits, dtype).any()):
        raise CorruptStreamError(f"group payload has a minimum or step beyond {dtype}")

    verbatim = raw.repeat_interleave(GROUP)[:count]
    raw_count = int(verbatim.sum())
    code_bytes = -(-(count - raw_count) * bits // 8)
    if payload.numel() != head_end + code_bytes + raw_count * dtype.itemsize:
        raise CorruptStreamError(
            f"group payload has {payload.numel()} bytes, its parameters say "
            f"{head_end + code_bytes + raw_count * dtype.itemsize}"
        )
    codes = _unpack(payload[head_end : head_end + code_bytes], count - raw_count, bits)
    out = torch.empty(count, dtype=dtype, device=device)
    of_group = torch.arange(groups, device=device).repeat_interleave(GROUP)[:count][~verbatim]
    out[~verbatim] = (low[of_group] + codes.to(real) * step[of_group]).to(dtype)
    # Verbatim values move as integers: not every device keeps a NaN's bits otherwise.
    pattern = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    out.view(pattern)[verbatim] = payload[head_end + code_bytes :].clone().view(pattern)
    return out


def beyond(low: Tensor, step: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Where a group's minimum and step give numbers that `dtype` does not have."""
    ceiling = _CEILING.get(dtype, float("inf"))
    high = low + float(2**bits - 1) * step
    return ~((step >= 0) & (low > -ceiling) & (low < ceiling) & (high < ceiling))


def parameters(payload: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Minimum and step of every group of a payload that `encode` made, in float64."""
    groups = -(-count // GROUP)
    real = arithmetic(dtype)
    start = HEADER_BYTES + -(-groups // 8)
    stored = payload[start : start + groups * 2 * real.itemsize].clone().view(real)
    low, step = stored.view(groups, 2).to(torch.float64).unbind(1)
    return low, step


def _pack(codes: Tensor, bits: int) -> Tensor:
    """Codes of 1, 2, 4 or 8 bits one after the other, the first in the lowest bits."""
    each = 8 // bits
    padded = torch.zeros(
        -(-codes.numel() // each) * each, dtype=torch.uint8, device=codes.device
    )
    padded[: codes.numel()] = codes
    places = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    return (padded.view(-1, each) << places).sum(1, dtype=torch.uint8)


def _unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    places = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    codes: Tensor = (packed.view(-1, 1) >> places & (2**bits - 1)).view(-1)
    if bool(codes[count:].any()):
        raise CorruptStreamError("group payload has bits set behind its last code")
    return codes[:count]
