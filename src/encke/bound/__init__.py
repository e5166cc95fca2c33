"""How far a decoded value may stray, or how large the result may be."""

from encke.bound.kinds import (
    Absolute,
    Bound,
    FixedRate,
    Lossless,
    PointwiseRelative,
    RangeRelative,
    RmsRelative,
)
from encke.bound.resolve import Promise, resolve

__all__ = [
    "Absolute",
    "Bound",
    "FixedRate",
    "Lossless",
    "PointwiseRelative",
    "Promise",
    "RangeRelative",
    "RmsRelative",
    "resolve",
]
