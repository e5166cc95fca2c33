"""What the measurements of a program say, as a word."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Step time that a tape may cost, and what it may cost where it stores nothing.
TIME_LIMIT, TIME_LIMIT_ASIDE = 1.3, 1.05
#: Process peak with Encke over the plain one.
PEAK_LIMIT = 1.03
#: Below this ratio of plain to stored bytes, a tape had little effect and has to say why.
LITTLE_EFFECT = 1.25


def losses_differ(plain: Sequence[float], encke: Sequence[float]) -> bool:
    """Whether the mean loss with Encke leaves the plain one by more than the seeds' spread.

    >>> losses_differ([0.9, 1.1], [1.0, 1.15]), losses_differ([0.9, 1.1], [1.4, 1.5])
    (False, True)
    >>> losses_differ([0.9], [float("nan")])
    True
    """
    if not all(map(math.isfinite, encke)):
        return True
    means = [sum(one) / len(one) for one in (plain, encke)]
    spread = max(plain) - min(plain) if len(plain) > 1 else 0.1 * abs(means[0])
    # Rounding alone moves a loss that does not depend on the seed.
    return abs(means[1] - means[0]) > max(spread, 0.01 * abs(means[0]))


def verdict(
    *,
    exits: Sequence[int],
    plain_exits: Sequence[int],
    plain_losses: Sequence[float],
    losses: Sequence[float],
    said: str,
    stored_ratio: float | None,
    time_ratio: float,
    peak_ratio: float,
) -> str:
    """One or more of the words of docs/programs.md, the worst first.

    `stored_ratio` is plain over stored bytes, None where nothing was compressed.
    """
    if any(plain_exits):
        return "broken without Encke"
    if any(exits):
        return "crash"
    aside = stored_ratio is None or stored_ratio < LITTLE_EFFECT
    if aside and not gives_a_reason(said):
        words = ["silent"]
    else:
        words = ["stepped aside" if aside else "ok"]
    faults = []
    if losses_differ(plain_losses, losses):
        faults.append("loss differs")
    limit = TIME_LIMIT_ASIDE if aside else TIME_LIMIT
    if time_ratio > limit:
        faults.append(f"slower than {limit}")
    if aside and peak_ratio > PEAK_LIMIT:
        faults.append(f"peak above {PEAK_LIMIT}")
    if words == ["ok"] and faults:
        words = []
    return ", ".join(words + faults)


def gives_a_reason(said: str) -> bool:
    """Whether what Encke printed tells why little was compressed."""
    return any(word in said for word in ("nothing was compressed", "× (", "bytes stored ("))
