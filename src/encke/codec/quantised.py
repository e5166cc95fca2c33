"""From a request to a quantiser: shared by the codecs that code integers."""

from __future__ import annotations

import torch

from encke.bound import Promise
from encke.codec.contract import Request
from encke.errors import BoundError, UnsupportedError
from encke.ops import quantiser
from encke.ops.quantiser import Quantiser


def quantiser_for(request: Request, dtype: torch.dtype, *, codec: str) -> Quantiser:
    """The quantiser that keeps the request's promise for values of `dtype`."""
    promise = request.promise
    if promise.rate is not None:
        raise BoundError(
            f"codec {codec!r} keeps an error, not a rate of {promise.rate:g} bits a value; "
            "use codec='group' or codec='zfp', or give an error bound"
        )
    if promise.pointwise is not None:
        if request.dither:
            raise UnsupportedError(
                "dither=True has no meaning for PointwiseRelative, whose codes are not on a "
                "uniform lattice; use an absolute or relative bound, or dither=False"
            )
        return quantiser.pointwise(promise.pointwise, dtype)
    assert promise.error is not None
    kind = (
        quantiser.DITHER
        if request.dither
        else quantiser.HALF
        if request.keep_nonzero
        else quantiser.PLAIN
    )
    return quantiser.linear(promise.error, dtype, kind=kind, seed=request.seed)


def promised_error(promise: Promise) -> float:
    """The number that a stream's header promises."""
    return promise.pointwise if promise.pointwise is not None else promise.error or 0.0
