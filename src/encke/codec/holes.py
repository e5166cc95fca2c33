"""Fields with holes: positions without a value are coded apart from the values.

Land, fill values, NaN and infinities are no values of a field: where they are is a bitmap,
what they are a short table of bit patterns. What is left goes to any codec for floats. One
that predicts from neighbours gets the field and the bitmap, the others get the values alone,
one behind the other. The format is section 14 of docs/format.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from encke.codec import hole_parts
from encke.codec.contract import FLOATS, Codec, Encoded, Request
from encke.codec.hole_parts import HoleParts
from encke.errors import CorruptStreamError, UnsupportedError
from encke.ops.backend import Backend

_PATTERN = {2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Values that are looked at where no fill value is named, and how many must not be finite.
_FEW, _MANY, _ENOUGH = 512, 8192, 4


def open_up(
    codec: Codec,
    payload: Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    backend: Backend,
    out: Tensor | None = None,
) -> Tensor:
    """The tensor of a payload that `enclose` made, in `out` if that is given."""
    parts = hole_parts.part(payload, count=math.prod(shape), size=dtype.itemsize)
    if dtype not in FLOATS:
        raise CorruptStreamError(f"stream says that {dtype} has holes, floats alone have")
    if out is None:
        out = _room(shape, dtype, payload.device)
    holes = backend.bitmap_decode(parts.bitmaps[0], shape)
    valid = holes.logical_not()
    if codec.takes_holes:
        codec.decode(parts.inner, shape, dtype, backend, out=out, valid=valid)  # type: ignore[call-arg]
    else:
        values = codec.decode(parts.inner, (parts.values,), dtype, backend)
        if int(torch.count_nonzero(valid)) != parts.values:
            raise CorruptStreamError(
                f"payload has a bitmap of other than {parts.values} values"
            )
        out[valid] = values
    filled = _put_patterns(parts, holes, shape, backend, out)
    if filled != out.numel() - parts.values:
        raise CorruptStreamError(
            f"payload has {filled} holes and {parts.values} values, {out.numel()} in all"
        )
    return out


def fill_values(fill: float | Sequence[float] | None) -> tuple[float, ...]:
    """`fill` as numbers.

    >>> fill_values(1e36), fill_values([-9999, 1e20]), fill_values(None)
    ((1e+36,), (-9999.0, 1e+20), ())
    """
    if fill is None:
        return ()
    numbers = fill if isinstance(fill, (list, tuple)) else [fill]
    try:
        return tuple(float(number) for number in numbers)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UnsupportedError(
            f"fill is {fill!r}, allowed are a number and a list of numbers, as in fill=1e36"
        ) from None


def find(
    x: Tensor, fill: tuple[float, ...], *, named: bool, thorough: bool, backend: Backend
) -> tuple[Tensor, int] | None:
    """Where `x`, in memory order, has a value, and how often; None if no holes are known.

    Where fill values are `named` every value is looked at. Otherwise only what is not finite
    can be a hole, and a sample says whether there is enough of it: NaN that are few are left
    to the codec of the values. On a device that would have to wait, nothing is looked at.
    """
    if x.numel() == 0:
        return None
    if not named:
        if x.device.type != "cpu":
            return None
        if backend.count_not_finite(x, _MANY if thorough else _FEW) < _ENOUGH:
            return None
    valid, many = backend.mark_values(x, fill)
    return None if many == x.numel() else (valid, many)


def enclose(x: Tensor, request: Request, encoded: Encoded) -> Encoded:
    """`encoded`, which a codec made of the values of `x`, with the holes of `request`."""
    backend, valid, count, shape = request.backend, request.valid, x.numel(), tuple(x.shape)
    assert valid is not None
    holes = valid.logical_not()
    values = request.values
    bitmaps = [backend.bitmap_encode(holes, shape)]
    others = torch.empty(0, dtype=torch.uint8, device=x.device)
    shared = backend.shared_pattern(x, valid)
    if shared is not None:
        patterns = [shared]
    else:
        found = x.view(_PATTERN[x.element_size()])[holes]
        patterns, classes = _classes(found)
        for image, domain in _images(holes, classes):
            bitmaps.append(backend.bitmap_encode(image, shape, domain))
        rest = found[classes == len(patterns)]
        if rest.numel():
            others = rest.view(torch.uint8)
    parts = HoleParts(
        values=values,
        bitmaps=bitmaps,
        patterns=patterns,
        others=others,
        inner=encoded.payload,
    )
    payload = hole_parts.join(parts, count=count, size=x.element_size())
    why = f"{1 - values / count:.1%} holes"
    return Encoded(payload, encoded.promised, f"{why}; {encoded.why}" if encoded.why else why)


def _room(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:
        raise MemoryError(f"no memory for the decoded tensor: {error}") from None


def _classes(found: Tensor) -> tuple[list[int], Tensor]:
    """The bit patterns in `found` in order of appearance, and which one each is; those
    beyond the most that a table holds share the class behind them."""
    patterns: list[int] = []
    classes = torch.zeros(found.numel(), dtype=torch.uint8, device=found.device)
    left = torch.ones_like(classes, dtype=torch.bool)
    while len(patterns) < hole_parts.MOST_PATTERNS:
        first = int(found[int(left.view(torch.uint8).argmax())]) if patterns else int(found[0])
        patterns.append(first)
        left &= found != first
        if not bool(left.any()):
            break
        classes[left] = len(patterns)
    return patterns, classes


def _images(holes: Tensor, classes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For each class but the last: where it is, and where no earlier one is."""
    domain = holes
    for number in range(int(classes.max())):
        image = torch.zeros_like(holes)
        image[holes] = classes == number
        yield image, domain
        domain = domain & ~image


def _put_patterns(
    parts: HoleParts, holes: Tensor, shape: tuple[int, ...], backend: Backend, out: Tensor
) -> int:
    """Puts into the holes of `out` what they had in them, bit for bit; how many they are."""
    bits = out.view(_PATTERN[out.element_size()])
    left, filled = holes, 0
    classes = len(parts.bitmaps)
    for number in range(classes):
        last = number == classes - 1
        image = left if last else backend.bitmap_decode(parts.bitmaps[number + 1], shape, left)
        if number < len(parts.patterns):
            filled += backend.put_pattern(out, image, parts.patterns[number])
        else:
            others = parts.others.clone().view(bits.dtype)
            if others.numel() != int(torch.count_nonzero(image)):
                raise CorruptStreamError(
                    f"payload has {others.numel()} patterns outside its table, its bitmaps "
                    f"say {int(torch.count_nonzero(image))}"
                )
            bits[image] = others
            filled += others.numel()
        if not last:
            left = left & ~image
    return filled
