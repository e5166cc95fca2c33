"""`group`: a few bits a value, whatever the values: the codec for a fixed rate.

Min-max quantisation in groups of 256 with stochastic rounding is how ActNN and GACT
store activations: unbiased, of a known size, with an error that follows from each
group's range. Where an error bound is given instead, rounding is to nearest, which
halves the largest error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.codec.contract import FLOATS, Codec, Encoded, Request
from encke.errors import BoundError, UnsupportedError
from encke.ops.backend import Backend
from encke.ops.reference.group import LEAST_RANGE, RATES, arithmetic, parameters

#: Half a unit in the last place of 1, for the arithmetic and for the 16-bit outputs.
_ROUNDING = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
_OUT_ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_HALF_SMALLEST = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}


class Group(Codec):
    """Minimum, step and codes of 1, 2, 4 or 8 bits (docs/format.md, section 9).

    >>> from encke import FixedRate, compress
    >>> x = torch.linspace(0, 1, 4096)
    >>> packed = compress(x, FixedRate(4), codec="group")
    >>> packed.max_error(x) <= packed.promised
    True
    """

    name = "group"
    id = 4
    dtypes = FLOATS
    keeps_zeros = False

    def encode(self, x: Tensor, request: Request) -> Encoded:
        if request.dither:
            raise UnsupportedError(
                "codec 'group' has no subtractive dither: at a fixed rate it rounds "
                "stochastically, which is unbiased too; use dither=False, or codec='fixed' or "
                "'entropy' with an error bound"
            )
        if request.keep_nonzero:
            raise UnsupportedError(
                "codec 'group' cannot keep non-zeros apart from zero; use codec='fixed' or "
                "'entropy', or keep_nonzero=False"
            )
        promise = request.promise
        if promise.rate is not None:
            if promise.rate not in RATES:
                raise BoundError(
                    f"codec 'group' takes rates of 1, 2, 4 or 8 bits a value, not "
                    f"{promise.rate:g}; choose one of them, or codec='zfp'"
                )
            return self._at_rate(x, request, int(promise.rate), stochastic=True)
        if promise.error is None:
            raise BoundError(
                "codec 'group' keeps an absolute error or a rate, not an error relative to "
                "each value; use codec='fixed', 'entropy' or 'lossless'"
            )
        return self._within(x, request, promise.error)

    def decode(
        self, payload: Tensor, shape: tuple[int, ...], dtype: torch.dtype, backend: Backend
    ) -> Tensor:
        return backend.group_decode(payload, math.prod(shape), dtype).view(shape)

    def _at_rate(self, x: Tensor, request: Request, bits: int, *, stochastic: bool) -> Encoded:
        seed = request.seed & 0xFFFF_FFFF_FFFF_FFFF
        payload = request.backend.group_encode(x, bits, stochastic, seed)
        low, step = parameters(payload, x.numel(), x.dtype)
        return Encoded(payload, worst_error(low, step, x.dtype, bits, stochastic=stochastic))

    def _within(self, x: Tensor, request: Request, error: float) -> Encoded:
        """The fewest bits that keep `error`, found from the groups' ranges at 8 bits."""
        widest = self._at_rate(x, request, 8, stochastic=False)
        low, step = parameters(widest.payload, x.numel(), x.dtype)
        for bits in RATES[:-1]:
            wider = step * (255 / (2**bits - 1))
            if worst_error(low, wider, x.dtype, bits, stochastic=False) > error * (1 + 1e-6):
                continue
            encoded = self._at_rate(x, request, bits, stochastic=False)
            if encoded.promised <= error:
                return encoded
        if widest.promised > error:
            raise BoundError(
                f"codec 'group' at 8 bits reaches an error of {widest.promised:.6g} on this "
                f"tensor, the bound is {error:.6g}; use codec='fixed' or 'entropy', or "
                "Lossless() to keep every bit"
            )
        return widest


def worst_error(
    low: Tensor, step: Tensor, dtype: torch.dtype, bits: int, *, stochastic: bool
) -> float:
    """The largest |decoded - x| that groups of these minima and steps can have.

    One step for stochastic rounding, half a step for rounding to nearest, and what the
    arithmetic adds, with r the relative error of one operation, L the largest code and M
    the largest magnitude: to the code, 4 operations on up to L steps and one sum of up to
    L + 1; from the code, a product of up to L steps and a sum of up to M.
    """
    if step.numel() == 0:
        return 0.0
    levels = 2**bits - 1
    unit = _ROUNDING[arithmetic(dtype)]
    # Groups of so small a range have codes of 0 only: they may miss by all of it.
    share = torch.where(step < LEAST_RANGE[arithmetic(dtype)], 1.0, 1.0 if stochastic else 0.5)
    largest = torch.maximum(low.abs(), (low + levels * step).abs())
    error = step * (share + unit * (6.2 * levels + 3)) + (1.001 * unit) * largest
    if dtype in _OUT_ROUNDING:
        # x itself is a 16-bit number, so rounding to the nearest one moves the decoded
        # value by no more than it was away from x.
        rounding = (1.001 * _OUT_ROUNDING[dtype]) * largest + _HALF_SMALLEST[dtype]
        error = error + torch.minimum(error, rounding)
    error = torch.where(step > 0, error, 0.0)
    return float(error.max()) * (1 + 2.0**-40)
