"""Values predicted from decoded ones at a fixed distance before them (format.md, section 7).

What a value decodes to depends on what an earlier one decoded to, so a chunk is walked
through in blocks of that distance: within one, nothing depends on anything else.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.quantiser import HALF, PLAIN, POINTWISE, Quantiser
from encke.ops.reference.digits import VERBATIM, ZERO
from encke.ops.reference.quantise import linear_values

BYTES = 16
#: The bit of parameter byte 7 that says that a payload predicts.
FLAG = 2

_SHORTEST, _LONGEST = 8, 65535
_CHUNK = 65536
#: Tensors below this are not worth looking at, nor are predictions that save less.
_LEAST_BYTES = 32768
_WORTH = 0.1
#: Codes beyond are not tried: the sums of values that far apart are too coarse.
_FARTHEST = {torch.float32: 2**21, torch.float64: 2**29}
#: The difference of two values is rounded before it is compared.
_ROOM = {torch.float32: 2.0**-22, torch.float64: 2.0**-51}


class Lag(NamedTuple):
    """The field behind the parameters of a payload that predicts.

    distance  from a value to the one that predicts it
    period    the first `distance` values of each are predicted as 0
    weight    of the earlier value, in sixteenths
    """

    distance: int
    period: int
    weight: int

    def to_bytes(self) -> bytes:
        """
        >>> Lag(56, 3136, 14).to_bytes().hex()
        '38000000400c00000e00000000000000'
        """
        return struct.pack("<IIB7x", self.distance, self.period, self.weight)

    @classmethod
    def from_bytes(cls, data: bytes) -> Lag:
        if len(data) < BYTES:
            raise CorruptStreamError("payload ends before it says what predicts its values")
        distance, period, weight, rest = struct.unpack("<IIB7s", data[:BYTES])
        sound = (
            _SHORTEST <= distance <= _LONGEST
            and period > distance
            and 1 <= weight <= 16
            and not any(rest)
        )
        if not sound:
            raise CorruptStreamError(
                f"payload predicts with distance {distance}, period {period}, weight {weight} "
                f"and {rest.hex()}, which none can be"
            )
        return cls(distance, period, weight)


def applies(dtype: torch.dtype, kind: int) -> bool:
    """Whether payloads of this dtype and kind may predict."""
    return dtype in _FARTHEST and kind != POINTWISE


def choose(x: Tensor, q: Quantiser) -> Lag | None:
    """The stride of `x` whose prediction saves most, if any saves enough.

    What is left over is taken to be normal, and what decoding adds to have a variance of
    step² / 12; values that are zero count as such, not as predicted.
    """
    if not applies(x.dtype, q.kind) or x.nbytes < _LEAST_BYTES or q.step0 == 0.0:
        return None
    flat = x.reshape(-1).to(torch.float64)
    best, most = None, _WORTH
    stride = 1
    for extent in reversed(x.shape):
        fits = _SHORTEST <= stride <= _LONGEST // 2
        if fits and extent > 1 and stride * extent < 2**32:
            gain, weight = _gain(flat, stride, stride * extent, q)
            if gain > most:
                best, most = Lag(stride, stride * extent, weight), gain
        stride *= extent
    return best


def _gain(flat: Tensor, distance: int, period: int, q: Quantiser) -> tuple[float, int]:
    """Bits a value that predicting saves, and the weight, in sixteenths, to do it with."""
    noise = q.step0**2 / 12
    at = torch.arange(distance, flat.numel(), device=flat.device)
    at = at[(at % _CHUNK >= distance) & (at % period >= distance)]
    x, y = flat[at], flat[at - distance]
    counts = (x != 0) & (x.abs() <= q.limit1) & (y.abs() <= q.limit1)
    x, y = x[counts], y[counts]
    if x.numel() < 64:
        return 0.0, 0
    xx, yy = float(x.var(correction=0)), float(y.var(correction=0))
    xy = float(((x - x.mean()) * (y - y.mean())).mean())
    # In kind half the sum of two odd halves of a step may be zero.
    heaviest = 15 if q.kind == HALF else 16
    weight = min(heaviest, math.floor(16 * xy / (yy + noise) + 0.5))
    if weight < 1:
        return 0.0, 0
    a = weight / 16
    left = max(0.0, xx - 2 * a * xy + a * a * (yy + noise))
    share = x.numel() / flat.numel()
    return share * 0.5 * math.log2((xx + noise) / (left + noise)), weight


def codes(values: Tensor, q: Quantiser, u: Tensor, lag: Lag, *, first: int) -> Tensor:
    """The codes, by the first step, of a chunk that starts at index `first`.

    A value that would not decode to within the bound is kept verbatim, and so is one that
    would become zero where that says something.
    """
    out = torch.empty(values.numel(), dtype=torch.int32, device=values.device)
    error = min(q.error, torch.finfo(values.dtype).max)
    allowed = _scalar(error * (1 - _ROOM[values.dtype]), values)
    step = _scalar(q.step0, values)
    far = _FARTHEST[values.dtype]

    def block(here: slice, p: Tensor) -> Tensor:
        x, own_u = values[here], u[here] if u.dim() else u
        t = (x - p) * (torch.ones_like(step) / step)
        if q.kind != PLAIN:
            t = t + own_u
        c = t.nan_to_num(0.0, far, -far).clamp(-far, far).round().to(torch.int32)
        y = p + linear_values(c, q.kind, q.step0, own_u, x.dtype)
        good = (y - x).abs() <= allowed
        if q.kind != PLAIN:
            good &= y != 0
        c = torch.where(good, c, VERBATIM)
        out[here] = torch.where(x == 0, ZERO, c)
        return torch.where(good & (x != 0), y, 0)

    _walk(values, lag, block, first=first)
    return out


def values_of(residuals: Tensor, coded: Tensor, lag: Lag, *, first: int) -> Tensor:
    """What the residuals of a chunk decode to; 0 where there is no code."""

    def block(here: slice, p: Tensor) -> Tensor:
        return torch.where(coded[here], p + residuals[here], 0)

    return _walk(residuals, lag, block, first=first)


def _walk(
    like: Tensor, lag: Lag, block: Callable[[slice, Tensor], Tensor], *, first: int
) -> Tensor:
    """Decoded values of a chunk: `block` gives those of a slice from their predictions."""
    share = _scalar(lag.weight / 16, like)
    decoded = torch.zeros_like(like)
    for start in range(0, like.numel(), lag.distance):
        here = slice(start, min(start + lag.distance, like.numel()))
        p = torch.zeros_like(like[here])
        if start:
            at = torch.arange(here.start, here.stop, device=like.device) + first
            earlier = decoded[here.start - lag.distance : here.stop - lag.distance]
            p = torch.where(at % lag.period >= lag.distance, share * earlier, p)
        decoded[here] = block(here, p)
    return decoded


def _scalar(number: float, like: Tensor) -> Tensor:
    return torch.tensor(number, dtype=like.dtype, device=like.device)
