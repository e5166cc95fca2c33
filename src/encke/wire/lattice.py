"""How a bound is shared between the two times that a mean is coded.

An all-reduce codes every rank's values, takes the mean of P decoded ones, and, where that
mean was made on one rank for all, codes it once more. With dither both errors are uniform,
independent and unbiased. If the first coding has the bound a·e and the second b·e, then

    largest error      a·e + b·e
    variance           (a·e)² / 3P + (b·e)² / 3

and the promise for the bound e is that of P independent codings alone: at most e, with
variance e² / 3P. Bits fall by one with each doubling of a or b, so the best shares have the
largest a·b under both conditions.
"""

from __future__ import annotations

import math


def shares(world: int) -> tuple[float, float]:
    """Shares (a, b) of the bound for the codings before and after the mean.

    >>> shares(2), shares(4)
    ((0.5, 0.5), (0.6, 0.4))
    >>> a, b = shares(64)
    >>> round(a, 3), round(b * 8, 3)
    (0.707, 0.707)
    """
    if world <= 3:  # only the largest error binds
        return 0.5, 0.5
    a, b = math.sqrt(0.5), math.sqrt(0.5 / world)
    if a + b <= 1.0:  # only the variance binds
        return a, b
    return (world - 1) / (world + 1), 2 / (world + 1)  # both do


def deviation(bound: float, world: int) -> float:
    """Standard deviation of the mean's error that `bound` promises not to exceed."""
    return bound / math.sqrt(3 * world)
