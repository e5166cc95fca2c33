"""The six ways to say what a decoded tensor must still be."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from encke.errors import BoundError


@dataclass(frozen=True)
class Bound:
    """What every bound has: a code in the stream format and one number."""

    #: The byte that stands for this kind in a stream's header.
    code: ClassVar[int]
    #: The command-line and JSON name of the kind.
    kind: ClassVar[str]

    @property
    def number(self) -> float:
        """The bound's one parameter (0 for `Lossless`)."""
        return 0.0


def _require(given: float, *, of: str, what: str, low: float, high: float, remedy: str) -> None:
    number_like = isinstance(given, numbers.Real) and not isinstance(given, bool)
    if not number_like or not low <= given <= high:  # which a NaN is not
        raise BoundError(f"{of}: {what} is {given!r}, allowed is {low:g} to {high:g}; {remedy}")


@dataclass(frozen=True)
class Absolute(Bound):
    """|decoded - x| <= error, for every finite value.

    >>> Absolute(1e-3)
    Absolute(error=0.001)
    >>> Absolute(-1.0)
    Traceback (most recent call last):
        ...
    encke.errors.BoundError: Absolute: error is -1.0, allowed is 0 to 1.79769e+308; \
give the largest |decoded - x| you accept, or Lossless() for none
    """

    error: float
    code: ClassVar[int] = 1
    kind: ClassVar[str] = "abs"

    def __post_init__(self) -> None:
        _require(
            self.error,
            of="Absolute",
            what="error",
            low=0.0,
            high=1.7976931348623157e308,
            remedy="give the largest |decoded - x| you accept, or Lossless() for none",
        )

    @property
    def number(self) -> float:
        return float(self.error)


@dataclass(frozen=True)
class RangeRelative(Bound):
    """|decoded - x| <= ratio * (max - min), over the tensor's finite values."""

    ratio: float
    code: ClassVar[int] = 2
    kind: ClassVar[str] = "range"

    def __post_init__(self) -> None:
        _require(
            self.ratio,
            of="RangeRelative",
            what="ratio",
            low=0.0,
            high=1.0,
            remedy="1e-2 means one per cent of max - min",
        )

    @property
    def number(self) -> float:
        return float(self.ratio)


@dataclass(frozen=True)
class RmsRelative(Bound):
    """|decoded - x| <= ratio * root mean square of the finite values.

    The unit for gradients: one per cent of a gradient's range is two or three
    of its standard deviations and would zero it.
    """

    ratio: float
    code: ClassVar[int] = 3
    kind: ClassVar[str] = "rms"

    def __post_init__(self) -> None:
        _require(
            self.ratio,
            of="RmsRelative",
            what="ratio",
            low=0.0,
            high=1e6,
            remedy="1e-1 means a tenth of the root mean square",
        )

    @property
    def number(self) -> float:
        return float(self.ratio)


@dataclass(frozen=True)
class PointwiseRelative(Bound):
    """|decoded - x| <= ratio * |x|, value by value; zeros and signs stay exact."""

    ratio: float
    code: ClassVar[int] = 4
    kind: ClassVar[str] = "pointwise"

    def __post_init__(self) -> None:
        _require(
            self.ratio,
            of="PointwiseRelative",
            what="ratio",
            low=0.0,
            high=0.5,
            remedy="1e-2 means one per cent of each value",
        )

    @property
    def number(self) -> float:
        return float(self.ratio)


@dataclass(frozen=True)
class FixedRate(Bound):
    """Each value's code takes `bits` bits, whatever that does to the error.

    The rate counts codes; what a codec keeps beside them (the minimum and the
    scale of a group) comes on top and is part of the reported ratio.
    """

    bits: float
    code: ClassVar[int] = 5
    kind: ClassVar[str] = "rate"

    def __post_init__(self) -> None:
        _require(
            self.bits,
            of="FixedRate",
            what="bits",
            low=0.25,
            high=64.0,
            remedy="codec 'group' takes 1, 2, 4 or 8 bits per value, 'zfp' any rate from 1",
        )

    @property
    def number(self) -> float:
        return float(self.bits)


@dataclass(frozen=True)
class Lossless(Bound):
    """Every bit comes back."""

    code: ClassVar[int] = 6
    kind: ClassVar[str] = "lossless"


#: Every kind by its code in a stream.
KINDS: dict[int, type[Bound]] = {
    cls.code: cls
    for cls in (Absolute, RangeRelative, RmsRelative, PointwiseRelative, FixedRate, Lossless)
}


def from_code(code: int, number: float) -> Bound:
    """The bound that a stream's header names."""
    if code not in KINDS:
        raise BoundError(f"bound code is {code}, allowed are {sorted(KINDS)}")
    make: Callable[..., Bound] = KINDS[code]
    return make() if code == Lossless.code else make(number)
