"""Trusting the predicted error only as far as it is measured.

Every so often one tensor at a time is kept exact beside its packed form, and backward
computes that op's gradients both ways. Where the true error exceeds the predicted one by
more than chance, the tensor's sensitivity is raised at once; where that keeps happening, the
tensor is kept as it is.
"""

from __future__ import annotations

import logging
from typing import Any

from encke.tape.policy import GradientEffect

log = logging.getLogger("encke")

_EXCESS = 2.0  # measured over predicted variance that a single measurement may show
_STRIKES = 3
#: Error of one row of a gradient, as a multiple of that row or of a mean one, above which a
#: tensor is kept exact at once: an op that divides or exponentiates makes few but huge errors.
_WORST_ROW = 4.0
_MOST_CAUTION = 1e6


class Guard:
    """Decides which tensor is checked in a step, and draws the conclusions."""

    def __init__(self, *, every: int = 50) -> None:
        self._every = every
        self._names: list[str] = []
        self._turn = 0
        self._now: str | None = None
        self._caution: dict[str, float] = {}
        self._strikes: dict[str, int] = {}
        self._distrusted: set[str] = set()
        self._changed = False
        #: By consumer: predicted and measured variance of the last check.
        self.measured: dict[str, tuple[float, float]] = {}

    def begin(self, step: int) -> None:
        due = self._every > 0 and step > 1 and step % self._every == 0
        self._now = None
        if due and self._names:
            self._now = self._names[self._turn % len(self._names)]
            self._turn += 1

    @property
    def is_checking(self) -> bool:
        """Whether some tensor is checked in the step that runs."""
        return self._now is not None

    def checks(self, name: str) -> bool:
        """Whether the tensor of this name is checked in the step that runs."""
        if self._every > 0 and name not in self._caution:
            self._caution[name] = 1.0
            self._names.append(name)
        return name == self._now

    def distrusts(self, name: str) -> bool:
        return name in self._distrusted

    def caution(self, name: str) -> float:
        """The factor by which a sensitivity is raised."""
        return self._caution.get(name, 1.0)

    def changed(self) -> bool:
        """Whether a factor has changed since this was asked last."""
        changed, self._changed = self._changed, False
        return changed

    def look_at_tail(self, effect: GradientEffect) -> None:
        """Keep a tensor exact whose error ruins single rows of a gradient."""
        name = str(effect.site)
        if effect.tail <= _WORST_ROW or name in self._distrusted:
            return
        self._distrusted.add(name)
        log.warning(
            "%s: an error within its bound changes a row of the gradient by %.2g times its "
            "size: kept exact",
            name,
            effect.tail**0.5,
        )

    def judge(self, effect: GradientEffect) -> None:
        """Compare what was predicted with what was measured."""
        assert effect.measured is not None
        before = self.caution(str(effect.site))
        self._judge(effect, effect.measured)
        self._changed |= self.caution(str(effect.site)) != before

    def _judge(self, effect: GradientEffect, found: tuple[float, float]) -> None:
        own, stream = found
        name = str(effect.site)
        predicted, measured = effect.predicted, own
        if predicted <= 0:
            predicted, measured = effect.stream, stream
        self.measured[str(effect.consumer)] = (predicted, measured)
        if measured <= _EXCESS * predicted:
            self._strikes[name] = 0
            self._caution[name] = max(1.0, self._caution.get(name, 1.0) / 2)
            return
        excess = measured / predicted if predicted > 0 else _MOST_CAUTION
        self._caution[name] = min(self._caution.get(name, 1.0) * excess, _MOST_CAUTION)
        self._strikes[name] = self._strikes.get(name, 0) + 1
        if self._strikes[name] >= _STRIKES:
            self._distrusted.add(name)
            log.warning(
                "%s: gradient error %.2g times the predicted, %d times running: kept exact",
                name,
                excess,
                _STRIKES,
            )
        else:
            log.warning(
                "%s: gradient error %.2g times the predicted: bound tightened", name, excess
            )

    def state_dict(self) -> dict[str, Any]:
        return {
            "turn": self._turn,
            "names": list(self._names),
            "caution": dict(self._caution),
            "strikes": dict(self._strikes),
            "distrusted": sorted(self._distrusted),
            "changed": self._changed,
            "measured": {name: list(pair) for name, pair in self.measured.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._turn = state["turn"]
        self._names = list(state["names"])
        self._caution = dict(state["caution"])
        self._strikes = dict(state["strikes"])
        self._distrusted = set(state["distrusted"])
        self._changed = state.get("changed", False)
        self.measured = {name: (p, m) for name, (p, m) in state.get("measured", {}).items()}
