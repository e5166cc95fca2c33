"""`predict`: each value is predicted from its neighbours, and what is left is coded.

The codec for smooth tensors: fields of a simulation, inputs of early layers. On tensors
whose neighbours say nothing about each other it does no better than `entropy`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.codec.contract import FLOATS, Codec, Encoded, Request
from encke.errors import BoundError
from encke.ops.backend import Backend
from encke.ops.quantiser import DITHER, PLAIN, Quantiser

#: Asks a backend to choose how to predict; the second one also keeps zeros apart.
CHOOSE, CHOOSE_KEEPING_NONZERO = (0,), (1,)

#: How far decoding may round, relative to the largest value, before the bound.
_ROUNDING: dict[torch.dtype, float] = {
    torch.float32: 2.0**-22,
    torch.float64: 2.0**-51,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
#: Values looked at to learn the magnitude.
_SAMPLE = 4096


class Predict(Codec):
    """Interpolation, Lorenzo or regression, then entropy coding (docs/format.md, section 8).

    Values are not kept apart by being zero: without `keep_nonzero`, an exact zero comes
    back as any value within the bound. With it, zeros come back as zeros and no other
    value does.
    """

    fills = True
    takes_holes = True
    name = "predict"
    id = 3
    dtypes = FLOATS

    def encode(self, x: Tensor, request: Request) -> Encoded:
        self.no_rate(request.promise)
        error = request.promise.error
        if error is None:
            raise BoundError(
                "codec 'predict' keeps one error for the whole tensor, not a share of each "
                "value; use codec='fixed' or 'entropy' for PointwiseRelative"
            )
        q = predict_quantiser(
            x, error, dither=request.dither, seed=request.seed, valid=request.valid
        )
        plan = CHOOSE_KEEPING_NONZERO if request.keep_nonzero else CHOOSE
        payload = request.backend.predict_encode(x, tuple(x.shape), q, plan, request.valid)
        return Encoded(payload, error)

    def decode(
        self,
        payload: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        backend: Backend,
        *,
        out: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        return backend.predict_decode(payload, shape, dtype, out, valid).view(shape)


def predict_quantiser(
    x: Tensor, error: float, *, dither: bool, seed: int, valid: Tensor | None = None
) -> Quantiser:
    """The step for `x` and, as its limit, the error that an encoder checks against.

    Every value is checked, so the step only has to make a failure rare: it leaves room
    for the rounding of values as large as those of a sample. A step of 0 means that the
    values are kept verbatim.
    """
    kind = DITHER if dither else PLAIN
    single = x.dtype != torch.float64
    e = min(error, 2.0**100 if single else 2.0**900)
    largest = _sampled_magnitude(x, valid)
    step = 2.0 * max(e - _ROUNDING[x.dtype] * largest, e / 2)
    if step < (2.0**-100 if single else 2.0**-900):
        step = 0.0
    if single:
        fraction, exponent = math.frexp(step)
        step = math.ldexp(math.floor(math.ldexp(fraction, 24)), exponent - 24)
    return Quantiser(kind, step, 0.0, error, 0.0, seed & 0xFFFF_FFFF_FFFF_FFFF)


def _sampled_magnitude(x: Tensor, valid: Tensor | None) -> float:
    flat = x.reshape(-1)
    stride = max(1, flat.numel() // _SAMPLE)
    sample = flat[::stride]
    if valid is not None:
        sample = sample[valid.reshape(-1)[::stride]]
    if sample.numel() == 0:
        return 0.0
    low, high = (float(v) for v in torch.aminmax(sample))
    if not (math.isfinite(low) and math.isfinite(high)):
        finite = sample[torch.isfinite(sample)]
        return float(finite.abs().max()) if finite.numel() else 0.0
    return max(abs(low), abs(high))
