"""Numbers that look as if they stood for "no value". They are proposed, never assumed."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST = 4
#: How far beside all other values, as a multiple of their range, a number stands out.
_FAR = 8.0
_SHARE = 10_000  # one value in so many, and two at least, must be that number


def propose_fill(x: Tensor) -> tuple[float, ...]:
    """Numbers of `x` that repeat and lie far outside the range of everything else.

    >>> propose_fill(torch.tensor([271.5, -9999.0, 280.0, -9999.0, 1e36, 1e36, 300.0]))
    (1e+36, -9999.0)
    >>> propose_fill(torch.tensor([0.0, 0.0, 1.0, 1.0]))
    ()
    """
    if not x.is_floating_point():
        return ()
    found: list[float] = []
    rest = x[torch.isfinite(x)].to(torch.float64)
    while len(found) < _MOST and rest.numel() > 2:
        low, high = (float(v) for v in torch.aminmax(rest))
        for number in sorted({low, high}, key=abs, reverse=True):
            others = rest[rest != number]
            many = rest.numel() - others.numel()
            if others.numel() == 0 or many < max(2, x.numel() / _SHARE):
                continue
            least, most = (float(v) for v in torch.aminmax(others))
            gap = least - number if number < least else number - most
            if least < most and gap >= _FAR * (most - least):
                found.append(_shortest(number, x.dtype))
                rest = others
                break
        else:
            break
    return tuple(found)


def _shortest(number: float, dtype: torch.dtype) -> float:
    """The number with the fewest digits that means the same in `dtype`."""
    exact = torch.tensor(number, dtype=dtype)
    for digits in range(1, 18):
        short = float(f"{number:.{digits}g}")
        if bool(torch.tensor(short, dtype=dtype) == exact):
            return short
    return number
