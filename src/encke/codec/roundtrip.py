"""The two calls everything else is built on: `compress` and `decompress`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from encke.bound import Bound, FixedRate, Lossless, resolve
from encke.codec import holes, layout, registry, stream, traced
from encke.codec.contract import FLOATS, Request, encode_values
from encke.codec.packed import Packed
from encke.errors import BoundError, UnsupportedError, did_you_mean
from encke.ops.backend import Backend
from encke.ops.select import select

Prefer = Literal["ratio", "speed"]
_PREFERENCES = ("ratio", "speed")
#: Codecs for which NaN is nothing out of the ordinary.
_KEEPS_NAN = frozenset({"lossless", "zfp", "group", "mask", "index"})


def compress(
    x: Tensor,
    bound: Bound,
    *,
    codec: str = "auto",
    prefer: Prefer = "ratio",
    dither: bool = False,
    seed: int = 0,
    keep_nonzero: bool = False,
    fill: float | Sequence[float] | None = None,
    backend: str | None = None,
) -> Packed:
    """Compress `x` so that it comes back within `bound`.

    For every finite value |decoded - x| stays within the bound, checked in float64;
    NaN, infinities and fill values come back bit for bit.

    codec         by name; "auto" picks one for this tensor, and the result's `why` says how
    prefer        what "auto" looks for: "ratio" or "speed"
    dither        subtractive dither: an error that is uniform, unbiased and independent of
                  the value, still within the bound
    seed          of the dither
    keep_nonzero  a value that is not zero never decodes to zero: a mask of them survives
    fill          numbers that stand for "no value": they come back bit for bit, and a bound
                  relative to range or root mean square is relative to those of the others
    backend       by name; unless given, the fastest for x's device

    >>> from encke.bound import Absolute
    >>> x = torch.linspace(-1, 1, 1000)
    >>> packed = compress(x, Absolute(1e-3), codec="fixed")
    >>> packed.max_error(x) <= 1e-3
    True
    """
    if not isinstance(x, Tensor):
        raise UnsupportedError(
            f"compress takes a torch.Tensor, this is {type(x).__name__}; "
            "use torch.as_tensor(...) first"
        )
    if not isinstance(bound, Bound) or type(bound) is Bound:
        raise BoundError(
            f"bound is {bound!r}, which does not say what it is relative to; "
            "write Absolute(1e-3), RangeRelative(1e-2), …"
        )
    if prefer not in _PREFERENCES:
        raise UnsupportedError(
            f"prefer is {prefer!r}, allowed are {', '.join(_PREFERENCES)}"
            f"{did_you_mean(prefer, _PREFERENCES)}"
        )
    if x.ndim > stream.MAX_DIMENSIONS:
        raise UnsupportedError(
            f"tensor has {x.ndim} dimensions, a stream holds at most {stream.MAX_DIMENSIONS}; "
            "merge some with reshape first"
        )
    layout.require_plain(x)
    x = x.detach().resolve_neg()
    order = layout.memory_order(x)
    inner = x if x.is_contiguous() else layout.to_memory(x, order)
    if torch.compiler.is_compiling():
        if fill is not None:
            raise UnsupportedError("fill= is not taken under torch.compile")
        payload = traced.encode(
            inner, bound, codec=codec, dither=dither, seed=seed, keep_nonzero=keep_nonzero
        )
        return Packed(
            codec, bound, traced.promised(bound), x.dtype, tuple(x.shape), order, payload
        )
    kernels = select(x.device, backend)
    found = _values_of(inner, bound, fill=fill, codec=codec, prefer=prefer, backend=kernels)
    valid, values = (None, 0) if found is None else found
    request = Request(
        promise=resolve(bound, inner, valid),
        backend=kernels,
        dither=dither,
        seed=seed,
        keep_nonzero=keep_nonzero,
        valid=valid,
        values=values,
    )
    if codec == "auto":
        from encke.codec.auto import choose

        chosen, encoded = choose(inner, request, prefer=prefer)
    else:
        chosen = registry.by_name(codec if isinstance(codec, str) else repr(codec))
        chosen.check(x.dtype, bound)
        encoded = encode_values(chosen, inner, request)
    if valid is not None:
        encoded = holes.enclose(inner, request, encoded)
    return Packed(
        codec=chosen.name,
        bound=bound,
        promised=encoded.promised,
        dtype=x.dtype,
        shape=tuple(x.shape),
        order=order,
        payload=encoded.payload,
        why=encoded.why,
        holes=valid is not None,
    )


def _values_of(
    x: Tensor,
    bound: Bound,
    *,
    fill: float | Sequence[float] | None,
    codec: str,
    prefer: str,
    backend: Backend,
) -> tuple[Tensor, int] | None:
    """Where `x` has values, and how often, if it has holes that are worth being coded apart."""
    if x.dtype not in FLOATS:
        return None
    named = fill is not None
    keeps_nan = isinstance(codec, str) and codec in _KEEPS_NAN
    if not named and (isinstance(bound, (Lossless, FixedRate)) or keeps_nan):
        return None
    thorough = codec == "predict" or (codec == "auto" and prefer == "ratio")
    numbers = holes.fill_values(fill)
    return holes.find(x, numbers, named=named, thorough=thorough, backend=backend)


def decompress(
    packed: Packed, *, out: Tensor | None = None, backend: str | None = None
) -> Tensor:
    """The tensor that was compressed, within its bound; into `out` if that is given."""
    return packed.decompress(out=out, backend=backend)
