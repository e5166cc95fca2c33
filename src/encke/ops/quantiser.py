"""From an error bound to the numbers a kernel multiplies with.

The linear quantiser maps x to an integer code c = rint(x * inv + u) and back to
(c - u) * step. Each product and each sum rounds, so a step of exactly twice the
bound would overshoot it by a few units in the last place. The step is therefore
a little smaller, and by how much depends on the largest code (DESIGN: step =
2e(1 - g)). Two *tiers* keep that price low: blocks of small magnitude use tier 0,
whose step is nearly 2e; blocks of larger magnitude use tier 1; what exceeds tier
1 is kept verbatim. A block's tier follows from its largest magnitude alone, so no
value is checked on its own.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch

from encke.errors import UnsupportedError

PLAIN, HALF, DITHER, POINTWISE = 0, 1, 2, 3


class Quantiser(NamedTuple):
    """Everything a kernel needs to turn values into codes and back.

    kind      PLAIN: u = 0. HALF: u = 1/2, so that no code decodes to zero.
              DITHER: u pseudo-random per position. POINTWISE: codes of the
              float's own bits, see `pointwise`.
    step0/1   the steps of the two tiers, exact in the arithmetic's precision
    limit0/1  the largest |x| of each tier; 0 where a tier is empty
    seed      of the dither, or the divisor of POINTWISE
    error     the bound itself, for encoders that compare what will be decoded with it;
              0 where there is none
    """

    kind: int
    step0: float
    step1: float
    limit0: float
    limit1: float
    seed: int
    error: float = 0.0


class _Arithmetic(NamedTuple):
    """Facts of one dtype: where it computes and how it rounds on the way out."""

    code_limits: tuple[int, int]  # largest |code| of the two tiers
    margins: tuple[float, float]  # share of the bound given to the output's rounding
    precision: int  # bits of the significand of the arithmetic
    out_precision: int  # bits of the significand of the dtype
    smallest: float  # smallest positive value
    largest: float  # largest finite value


_ARITHMETIC: dict[torch.dtype, _Arithmetic] = {
    torch.float32: _Arithmetic((2**12, 2**19), (0.0, 0.0), 24, 24, 2.0**-149, 2.0**127),
    torch.float64: _Arithmetic((2**17, 2**29), (0.0, 0.0), 53, 53, 2.0**-1074, 2.0**1023),
    torch.float16: _Arithmetic((2**11, 2**11), (1 / 16, 1 / 2), 24, 11, 2.0**-24, 2.0**15),
    torch.bfloat16: _Arithmetic((2**8, 2**8), (1 / 16, 1 / 2), 24, 8, 2.0**-133, 2.0**127),
}

#: Mantissa bits, and so the integer distance of one relative unit, per dtype.
_MANTISSA: dict[torch.dtype, int] = {
    torch.float32: 23,
    torch.float64: 52,
    torch.float16: 10,
    torch.bfloat16: 7,
}


def linear(error: float, dtype: torch.dtype, *, kind: int = PLAIN, seed: int = 0) -> Quantiser:
    """The quantiser whose decoded values stay within `error` of the input.

    >>> q = linear(0.5, torch.float32)
    >>> 0.998 < q.step0 < 1.0, q.step1 < q.step0, q.limit0 > 4000
    (True, True, True)
    """
    seed = seed & 0xFFFF_FFFF_FFFF_FFFF if kind == DITHER else 0
    return Quantiser(kind, *_tiers(error, dtype, kind), seed, error)


@functools.lru_cache(maxsize=4096)
def _tiers(error: float, dtype: torch.dtype, kind: int) -> tuple[float, float, float, float]:
    """Both steps and both limits; kept, since a training asks with few different bounds."""
    facts = _ARITHMETIC.get(dtype)
    if facts is None:
        raise UnsupportedError(f"dtype is {dtype}, lossy codecs take {list(_ARITHMETIC)}")
    roundings = 3.0 if kind == PLAIN else 5.0
    step0, limit0 = _tier(error, facts, 0, roundings=roundings)
    step1, limit1 = _tier(error, facts, 1, roundings=roundings)
    return step0, step1, limit0, limit1


def _tier(
    error: float, facts: _Arithmetic, tier: int, *, roundings: float
) -> tuple[float, float]:
    """Step and magnitude limit of one tier.

    |y - x| <= step/2 + roundings * codes * step * 2^-precision, plus what rounding
    to a 16-bit dtype adds: at most (limit + 2e) * 2^-out_precision, or the
    smallest subnormal, which must fit in the margin.
    """
    unit = 2.0 ** (1 - facts.precision)
    e = min(error, facts.largest / 8)
    codes, margin = facts.code_limits[tier], facts.margins[tier]
    slack = 1.0 + roundings * codes * unit
    step = _round_down(2.0 * e * (1.0 - margin) / slack * (1.0 - 4 * unit), facts.precision)
    # Steps so small that 1/step or its products would leave the normal range.
    if step < (2.0**-100 if facts.precision == 24 else 2.0**-900):
        return 0.0, 0.0
    limit = (codes - 2) * step  # an offset and a rounding may each add one
    if margin:
        room = margin * e - facts.smallest
        limit = min(limit, room * 2.0**facts.out_precision - 2.0 * e)
    limit = min(limit, facts.largest / 2)
    if limit <= 0.0:
        return 0.0, 0.0
    return step, _round_down(limit, facts.precision)


def pointwise(ratio: float, dtype: torch.dtype) -> Quantiser:
    """Codes k = round(b / D) of the magnitude's bit pattern b, read as an integer.

    Within a binade the pattern is linear in the value, one unit being 2^-mantissa
    of it at most, so |error| <= D/2 units keeps the relative error within
    D * 2^-(mantissa + 1). Integer arithmetic: the same bits on every backend.
    """
    mantissa = _MANTISSA.get(dtype)
    if mantissa is None:
        raise UnsupportedError(f"dtype is {dtype}, lossy codecs take {list(_MANTISSA)}")
    divisor = max(1, math.floor(ratio * 2.0 ** (mantissa + 1)))
    return Quantiser(POINTWISE, 0.0, 0.0, 0.0, 0.0, divisor)


def _round_down(value: float, precision: int) -> float:
    """The largest number of `precision` significant bits that is <= value > 0."""
    if precision >= 53 or value == 0.0:
        return math.nextafter(value, 0.0)
    fraction, exponent = math.frexp(value)
    return math.ldexp(math.floor(math.ldexp(fraction, precision)), exponent - precision)
