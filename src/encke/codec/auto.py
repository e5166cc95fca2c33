"""Which codec a tensor gets when none is named.

What a tensor is decides most of it: truth values take `mask`, an exact bound takes
`lossless`, a rate takes `group` or `zfp`. Among the codecs that keep an error bound,
`prefer="speed"` takes `fixed`; `prefer="ratio"` tries them on a sample, because which is
smallest depends on the values: prediction halves a smooth tensor and hurts a rough one. On a
GPU only codecs that have kernels there are tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from encke.codec import registry, zfp
from encke.codec.contract import Codec, Encoded, Request, encode_values
from encke.errors import BoundError, UnsupportedError
from encke.ops.reference.group import RATES

#: Tensors up to this many values are tried whole: the winner's payload is then the result.
WHOLE = 1 << 17
_LARGEST_SAMPLE = 1 << 20
_SHARE = 32  # one value in so many is sampled
_RUNS = 4
_LONG_RUN = 8  # rows that a run should have, so that prediction across rows shows
_NEAR_TIE = 1.02


def choose(x: Tensor, request: Request, *, prefer: str) -> tuple[Codec, Encoded]:
    """The codec for `x`, and `x` encoded with it; `Encoded.why` says how it was found.

    `x` is contiguous and in memory order, as codecs take it.
    """
    registry.by_name("lossless").check(x.dtype)  # which takes whatever any codec takes
    promise = request.promise
    if x.dtype == torch.bool:
        return _only("mask", x, request, "truth values take one bit each")
    if not x.dtype.is_floating_point:
        if prefer == "speed":
            return _only("index", x, request, "the fastest for integers")
        return _smallest(_at_hand(("index", "lossless"), request), x, request)
    if promise.rate is not None:
        return _at_rate(x, request, promise.rate)
    if promise.exact:
        return _only("lossless", x, request, "the bound leaves no room for an error")
    if prefer == "speed":
        return _only("fixed", x, request, "the fastest within an error bound")
    candidates = ["fixed", "entropy", "predict", "lossless"]
    if promise.pointwise is not None or not _has_neighbours(x):
        candidates.remove("predict")
    return _smallest(_at_hand(candidates, request), x, request)


def _at_hand(names: Sequence[str], request: Request) -> Sequence[str]:
    """The codecs that work where the tensor is: a sample must not make the device wait for
    the host. Who wants another one names it."""
    return [name for name in names if name not in request.backend.on_host]


def _only(name: str, x: Tensor, request: Request, reason: str) -> tuple[Codec, Encoded]:
    codec = registry.by_name(name)
    codec.check(x.dtype)
    return codec, encode_values(codec, x, request)._replace(why=reason)


def _at_rate(x: Tensor, request: Request, rate: float) -> tuple[Codec, Encoded]:
    if rate in RATES:
        return _only("group", x, request, f"{rate:g} bits a value, rounded stochastically")
    if zfp.available() and x.dtype in registry.by_name("zfp").dtypes:
        return _only("zfp", x, request, f"the one for a rate of {rate:g} bits a value")
    raise BoundError(
        f"no codec keeps {rate:g} bits a value for {x.dtype}: 'group' takes 1, 2, 4 and 8, "
        "'zfp' takes others for float32 and float64 (pip install 'encke[zfp]')"
    )


def _has_neighbours(x: Tensor) -> bool:
    """Whether some dimension is long enough for a value to be predicted from the one before."""
    return x.ndim > 0 and x.numel() >= 16 and max(x.shape) >= 4


def _smallest(names: Sequence[str], x: Tensor, request: Request) -> tuple[Codec, Encoded]:
    """The codec that makes the sample smallest; of near equals the first named."""
    whole = x.numel() <= WHOLE
    trial, asked = x, request
    if not whole:
        trial = sample(x)
        if request.valid is not None:
            asked = replace(request, valid=sample(request.valid))
    results: dict[str, Encoded] = {}
    refusals: dict[str, Exception] = {}
    for name in names:
        try:
            results[name] = encode_values(registry.by_name(name), trial, asked)
        except (BoundError, UnsupportedError) as error:
            refusals[name] = error
    if names[0] in refusals and set(results) <= {"lossless"}:
        # What was asked for (dither, say) is offered by no codec that would use it.
        raise refusals[names[0]]
    sizes = {name: max(1, encoded.payload.numel()) for name, encoded in results.items()}
    limit = min(sizes.values()) * _NEAR_TIE
    chosen = next(name for name in names if sizes.get(name, math.inf) <= limit)
    codec = registry.by_name(chosen)
    encoded = results[chosen] if whole else encode_values(codec, x, request)
    plain = trial.numel() * trial.dtype.itemsize
    others = [
        f"{name} {plain / sizes[name]:.1f}×"
        for name in names
        if name in sizes and name != chosen
    ]
    found = f"{plain / sizes[chosen]:.1f}×" + ("" if whole else " on a sample")
    return codec, encoded._replace(why=", ".join([found, *others]))


def sample(x: Tensor) -> Tensor:
    """A few runs of consecutive rows of `x`, whole along the last dimensions.

    >>> sample(torch.zeros(256, 64, 32, 32)).shape
    torch.Size([8, 64, 32, 32])
    """
    wanted = min(_LARGEST_SAMPLE, max(WHOLE, x.numel() // _SHARE))
    kept = x.ndim
    while kept > 0 and math.prod(x.shape[kept - 1 :]) * _LONG_RUN <= wanted:
        kept -= 1
    kept = max(kept, 1)  # a row may be a single value
    rows = x.reshape(-1, *x.shape[kept:])
    row_values = math.prod(x.shape[kept:])
    take = min(len(rows), max(1, wanted // row_values))
    runs = max(1, min(_RUNS, take // _LONG_RUN))
    length = take // runs
    last = len(rows) - length
    starts = [last * run // max(1, runs - 1) if runs > 1 else last // 2 for run in range(runs)]
    return torch.cat([rows[start : start + length] for start in starts])
