"""How well scores tell signal from background.

Labels are 1 for signal and 0 for background; a higher score says signal. Of jets with equal
scores either all are taken or none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Statistic = Callable[[Array, NDArray[np.int64]], float]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Efficiencies as the threshold falls, from (0, 0) to (1, 1).

    signal      share of the signal at or above the threshold
    background  share of the background at or above it
    """

    signal: Array
    background: Array


def roc(scores: Array, labels: NDArray[np.int64]) -> Curve:
    """The curve of all thresholds.

    >>> curve = roc(np.array([0.9, 0.8, 0.3, 0.1]), np.array([1, 0, 1, 0]))
    >>> curve.signal.tolist(), curve.background.tolist()
    ([0.0, 0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 0.5, 0.5, 1.0])
    """
    signal = int(labels.sum())
    if not 0 < signal < len(labels):
        raise ValueError(f"{signal} of {len(labels)} are signal; some must be and some not")
    order = np.argsort(-scores, kind="stable")
    ranked, found = scores[order], labels[order]
    last = np.append(ranked[1:] != ranked[:-1], True)  # of those with an equal score
    above = np.cumsum(found)[last]
    counted = np.arange(1, len(labels) + 1)[last]
    return Curve(
        signal=np.append(0.0, above / signal),
        background=np.append(0.0, (counted - above) / (len(labels) - signal)),
    )


def area(scores: Array, labels: NDArray[np.int64]) -> float:
    """Area under the curve: the chance that a signal scores above a background (a tie is ½).

    >>> area(np.array([0.9, 0.8, 0.3, 0.1]), np.array([1, 0, 1, 0]))
    0.75
    """
    curve = roc(scores, labels)
    return float(np.trapezoid(curve.signal, curve.background))


def background_at(curve: Curve, efficiency: float) -> float:
    """Share of background that passes where that share of the signal does.

    Between two thresholds the curve is taken to be straight, as if those between were chosen
    by lot.
    """
    at = int(np.searchsorted(curve.signal, efficiency))
    if at == 0:
        return 0.0
    before, after = curve.signal[at - 1], curve.signal[at]
    part = (efficiency - before) / (after - before)
    rise = curve.background[at] - curve.background[at - 1]
    return float(curve.background[at - 1] + part * rise)


def rejection(scores: Array, labels: NDArray[np.int64], efficiency: float) -> float:
    """1/ε_B: how many background jets there are for one that passes, where ε_S is given.

    Infinite where none passes.

    >>> rejection(np.array([0.9, 0.8, 0.3, 0.1]), np.array([1, 0, 1, 0]), 0.75)
    2.0
    """
    passed = background_at(roc(scores, labels), efficiency)
    return 1 / passed if passed > 0 else float("inf")


def resamplings(
    labels: NDArray[np.int64], *, draws: int, seed: int = 0
) -> list[NDArray[np.int64]]:
    """Indices of bootstrap samples with as many signal and background jets as there are."""
    generator = np.random.default_rng(seed)
    classes = [np.flatnonzero(labels == label) for label in (0, 1)]
    return [
        np.concatenate([generator.choice(members, len(members)) for members in classes])
        for _ in range(draws)
    ]


def interval(
    statistic: Statistic,
    scores: Array,
    labels: NDArray[np.int64],
    *,
    draws: int = 200,
    seed: int = 0,
) -> tuple[float, float]:
    """What a statistic's middle 68 % are when the jets are drawn again, with replacement."""
    values = [
        statistic(scores[index], labels[index])
        for index in resamplings(labels, draws=draws, seed=seed)
    ]
    low, high = np.quantile(values, [0.16, 0.84], method="nearest")
    return float(low), float(high)


def difference(
    statistic: Statistic,
    first: Array,
    second: Array,
    labels: NDArray[np.int64],
    *,
    draws: int = 200,
    seed: int = 0,
) -> tuple[float, float]:
    """second − first, and its standard deviation when both score the same drawn jets."""
    values = [
        statistic(second[index], labels[index]) - statistic(first[index], labels[index])
        for index in resamplings(labels, draws=draws, seed=seed)
    ]
    finite = [value for value in values if np.isfinite(value)]
    spread = float(np.std(finite, ddof=1)) if len(finite) > 1 else float("nan")
    return statistic(second, labels) - statistic(first, labels), spread
