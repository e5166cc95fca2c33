"""The controller's answer to the wire: one tolerance for all that is compressed.

    policy = WireBounds(0.01, tape=tape.policy)
    comm = encke.wire.CompressedComm(policy=policy)

The tape's error and the wire's are independent, so their variances add, and the tolerance is
split between them. Where a checked exchange shows more variance than a bound promises, which
can happen with plain rounding, when the errors of ranks agree, the bound is tightened at once,
and given up where that keeps happening.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from encke.control.adaptive import Adaptive
from encke.errors import UnsupportedError
from encke.wire.lattice import deviation
from encke.wire.noise import NoiseRule
from encke.wire.protocol import Observation, Segment

log = logging.getLogger("encke")

_EXCESS = 1.5  # measured over promised variance that a single measurement may show
_STRIKES = 3


class WireBounds:
    """Bounds for gradients on the wire; `encke.wire.protocol.BoundPolicy`.

    tolerance  variance that compression may add to a gradient, as a share of its own, by the
               wire and, if it is given, by the tape together
    tape       the policy of the tape that compresses activations of the same training; it
               goes on with the tape's part of the tolerance
    share      of the tolerance that is the wire's, where there is a tape
    """

    def __init__(
        self,
        tolerance: float = 0.01,
        *,
        tape: Adaptive | None = None,
        share: float = 0.5,
        refresh: int = 8,
    ) -> None:
        if not 0 < share < 1:
            raise UnsupportedError(f"share is {share!r}, allowed is between 0 and 1")
        self._rule = NoiseRule(
            tolerance if tape is None else share * tolerance, refresh=refresh
        )
        if tape is not None:
            tape.tolerance = (1 - share) * tolerance
        self._caution: dict[str, float] = {}
        self._strikes: dict[str, int] = {}

    @property
    def tolerance(self) -> float:
        """The wire's part. A plan may choose less of it."""
        return self._rule.tolerance

    @tolerance.setter
    def tolerance(self, tolerance: float) -> None:
        self._rule.tolerance = tolerance

    def bound(self, segment: Segment, *, step: int) -> float | None:
        if self._strikes.get(segment.name, 0) >= _STRIKES:
            return None
        bound = self._rule.bound(segment, step=step)
        if bound is None:
            return None
        return bound / math.sqrt(self._caution.get(segment.name, 1.0))

    def observes(self, *, step: int) -> bool:
        return self._rule.observes(step=step)

    def observe(self, seen: Observation) -> None:
        self._rule.observe(seen)
        if seen.error is not None and seen.bound:
            self._judge(seen, seen.error, seen.bound)

    def _judge(self, seen: Observation, error: float, bound: float) -> None:
        name, promised = seen.segment.name, deviation(bound, seen.segment.world) ** 2
        by_chance = 1.0 + 6.0 * math.sqrt(2.0 / max(1, seen.segment.values))
        if error <= max(_EXCESS, by_chance) * promised:
            self._strikes[name] = 0
            self._caution[name] = max(1.0, self._caution.get(name, 1.0) / 2)
            return
        excess = error / promised
        self._caution[name] = self._caution.get(name, 1.0) * excess
        self._strikes[name] = self._strikes.get(name, 0) + 1
        log.warning(
            "%s: error of the mean has %.2g times the promised variance: %s",
            name,
            excess,
            "exchanged exactly from now on"
            if self._strikes[name] >= _STRIKES
            else "bound tightened",
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            **self._rule.state_dict(),
            "caution": dict(self._caution),
            "strikes": dict(self._strikes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rule.load_state_dict(state)
        self._caution = {str(k): float(v) for k, v in state.get("caution", {}).items()}
        self._strikes = {str(k): int(v) for k, v in state.get("strikes", {}).items()}
