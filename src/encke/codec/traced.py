"""`compress` and `decompress` as operators in a graph, for `torch.compile`.

Nothing here looks at values, so that `fullgraph=True` holds: the bound is resolved
inside an operator, and the codec must be named.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.bound import Absolute, Bound, FixedRate, PointwiseRelative
from encke.errors import UnsupportedError
from encke.ops import quantiser
from encke.ops.schema import operators

_TRACEABLE = ("fixed", "entropy", "group", "mask", "index")


def encode(
    inner: Tensor, bound: Bound, *, codec: str, dither: bool, seed: int, keep_nonzero: bool
) -> Tensor:
    """The payload of a tensor in memory order."""
    ops = operators
    if codec in ("fixed", "entropy"):
        kind = (
            quantiser.DITHER if dither else quantiser.HALF if keep_nonzero else quantiser.PLAIN
        )
        numbers = ops.quantiser(inner, bound.code, bound.number, kind)
        encoder = ops.fixed_encode if codec == "fixed" else ops.entropy_encode
        payload: Tensor = encoder(inner, numbers, seed)
        return payload
    if codec == "group" and isinstance(bound, FixedRate):
        return ops.group_encode(inner, int(bound.bits), True, seed)  # type: ignore[no-any-return]
    if codec == "mask":
        return ops.mask_encode(inner)  # type: ignore[no-any-return]
    if codec == "index":
        return ops.index_encode(inner)  # type: ignore[no-any-return]
    raise UnsupportedError(
        f"under torch.compile codec is {codec!r} with a bound of kind {bound.kind}, "
        f"allowed are {', '.join(_TRACEABLE)} ('group' with FixedRate); name one of them"
    )


def decode(payload: Tensor, shape: tuple[int, ...], dtype: torch.dtype, codec: str) -> Tensor:
    """The inverse of `encode`."""
    ops, count = operators, math.prod(shape)
    if codec not in _TRACEABLE:
        raise UnsupportedError(
            f"under torch.compile codec is {codec!r}, allowed are {', '.join(_TRACEABLE)}"
        )
    if codec == "mask":
        return ops.mask_decode(payload, count).view(shape)  # type: ignore[no-any-return]
    decoder = getattr(ops, f"{codec}_decode")
    return decoder(payload, count, dtype).view(shape)  # type: ignore[no-any-return]


def promised(bound: Bound) -> float:
    """What can be promised without looking at the data; NaN where it depends on them."""
    return bound.number if isinstance(bound, (Absolute, PointwiseRelative)) else math.nan
