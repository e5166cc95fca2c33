"""What a tape's work costs in time, and which tensors are not worth it.

Every saved tensor that the tape handles costs some Python and a kernel, however few bytes it
has. In a network of thousands of small tensors that is longer than the step itself. So the
seconds spent on each place are measured, and places are left to autograd, those first that save
the fewest bytes a second, until a step takes at most `slowdown` longer than without a tape.
Where hardly anything is left to do, the tape stands aside.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from encke.tape.policy import Site

#: Tensors of fewer bytes stay with autograd in any case: a header would eat what is saved.
SMALL = 4096
#: A forward pass that spends this many seconds on small tensors, and more than twice what the
#: rest of it takes, passes over larger ones at once, up to `_LARGEST_SMALL` bytes.
_PATIENCE, _TOO_MUCH, _LARGEST_SMALL = 0.04, 2.0, 256 << 10
#: Of the slowdown that is allowed: what is planned for, since steps vary.
_MARGIN = 0.9
#: What a tape's work costs, over what its own clock sees of it: torch's hooks and cold caches.
_UNSEEN = 1.25
#: Of the bytes that autograd would hold: where less is saved, or a smaller share than the time
#: that may be spent, the tape is not worth it.
_WORTH = 0.15
#: Passes measured before places are chosen; chosen anew when twice as many were.
_FIRST = 1
#: Of what is allowed: a tape that takes more stands aside after a single pass.
_HOPELESS = 2.0

now = time.perf_counter


@cache
def seconds_to_watch() -> float:
    """What it takes torch to hand one function to a mode, on this machine."""

    class Nothing(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    def timed(calls: int = 200) -> float:
        began = now()
        for _ in range(calls):
            t.add(1)
        return (now() - began) / calls

    t = torch.zeros(1)
    without = min(timed() for _ in range(3))
    with Nothing():
        return max(0.0, min(timed() for _ in range(3)) - without)


@dataclass(slots=True)
class Cost:
    """Of one place in one pass: seconds in forward and backward, and bytes that it saved."""

    seconds: float = 0.0
    saved: int = 0


class Pace:
    """Measures passes, and says which places to leave alone.

    slowdown  seconds that a tape may take, as a share of a step without one; None for any
    seconds   spent by the tape in all passes so far
    smallest  bytes below which a tensor is passed over
    aside     why the tape does nothing any more; empty while it does
    ordinary  whether nothing is observed in the pass that runs
    functions torch functions that the tape has watched in it
    """

    def __init__(self, slowdown: float | None = None) -> None:
        self.slowdown = slowdown
        self.seconds = 0.0
        self.smallest = SMALL
        self.aside = ""
        self._left: set[Site] = set()
        #: What places cost in the pass that runs, and in the shortest that is chosen by.
        self._now: dict[Site, Cost] = {}
        self._costs: dict[Site, Cost] = {}
        self._plain = 0
        #: When the pass that runs began, and how much had been spent then.
        self._began: float | None = None
        self._before = self._looked = 0.0
        #: Seconds of passes that are chosen by, and of them those that the tape spent.
        self._passes: list[tuple[float, float]] = []
        self._choose_at = _FIRST
        self._throttled = False
        self.ordinary = False
        self.functions = 0

    def begin(self) -> None:
        """A forward pass begins."""
        moment = now()
        # What torch takes to call the tape is not seen by the tape's own clock.
        self.seconds += self.functions * seconds_to_watch()
        self.functions = 0
        measured = self._began is not None and self.ordinary and not self._throttled
        if measured and self._began is not None and self.slowdown is not None:
            spent = self.seconds - self._before
            if all(spent < other for _, other in self._passes):
                self._costs, self._now = self._now, {}
            self._passes.append((moment - self._began, spent))
            if len(self._passes) >= self._choose_at:
                self._choose()
        self._now.clear()
        self._throttled = False
        self._began = moment
        self._before = self._looked = self.seconds

    def measure_anew(self) -> None:
        """Other ops are handled from now on: what was measured does not count."""
        self._passes.clear()
        self._costs.clear()
        self._began = None
        self._choose_at = _FIRST

    def spend(self, seconds: float) -> None:
        """The tape has worked for this long."""
        self.seconds += seconds
        if self.seconds - self._looked > _PATIENCE and self._began is not None:
            self._looked = self.seconds
            spent = self.seconds - self._before
            rest = now() - self._began - spent
            small = self.smallest < _LARGEST_SMALL
            if self.slowdown is not None and small and spent > _TOO_MUCH * rest:
                self.smallest *= 4
                self._throttled = True

    def spend_on(self, site: Site, seconds: float, saved: int = 0) -> None:
        """Of what the tape has worked, this was for one place."""
        if self.slowdown is not None:
            self._add(self._now, site, seconds, saved)

    @staticmethod
    def _add(costs: dict[Site, Cost], site: Site, seconds: float, saved: int) -> None:
        cost = costs.get(site)
        if cost is None:
            cost = costs[site] = Cost()
        cost.seconds += seconds
        cost.saved += saved

    def holds(self, stored: int, plain: int) -> None:
        """A forward pass has ended: bytes that are held, and that autograd alone would hold."""
        self._plain = plain
        crowded = self.slowdown is not None and self.smallest >= _LARGEST_SMALL
        if crowded and stored > (1 - _WORTH) * plain:
            self.aside = (
                f"it saves {plain:,} bytes in tensors so small that handling them takes longer "
                "than the step itself"
            )

    def leaves(self, site: Site) -> bool:
        """Whether a place is left to autograd."""
        return site in self._left

    @property
    def left(self) -> int:
        """How many places are left to autograd."""
        return len(self._left)

    def _choose(self) -> None:
        """Leave places alone until the rest can be handled in the time that is allowed."""
        assert self.slowdown is not None
        # The shortest: other work on the machine only ever makes a pass longer.
        spent = _UNSEEN * min(s for _, s in self._passes)
        plain = max(min(w - s for w, s in self._passes), 1e-6)
        costs = {
            site: Cost(_UNSEEN * cost.seconds, cost.saved) for site, cost in self._costs.items()
        }
        single = len(self._passes) == 1
        self._passes.clear()
        self._costs.clear()
        self._choose_at = min(2 * self._choose_at, 64)
        if spent <= self.slowdown * plain:
            return
        kept, left = choose(costs, spent=spent, allowed=_MARGIN * self.slowdown * plain)
        saved = sum(costs[site].saved for site in kept)
        little = saved < max(_WORTH, self.slowdown) * self._plain or not kept
        if little and single and spent <= _HOPELESS * self.slowdown * plain:
            return  # another pass may be quieter
        self._left |= left
        if little:
            self.aside = (
                f"compressing what it saves takes {spent / plain:.2g} of the time that a step "
                f"takes without, {self.slowdown:g} is allowed (slowdown=), and little would be "
                "saved within that"
            )

    def state_dict(self) -> dict[str, Any]:
        return {
            "smallest": self.smallest,
            "aside": self.aside,
            "left": [[s.module, s.op, s.role, s.index] for s in sorted(self._left, key=str)],
            "choose_at": self._choose_at,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.smallest = state.get("smallest", SMALL)
        self.aside = state.get("aside", "")
        self._left = {Site(*one) for one in state.get("left", ())}
        self._choose_at = state.get("choose_at", _FIRST)


def choose(
    costs: Mapping[Site, Cost], *, spent: float, allowed: float
) -> tuple[set[Site], set[Site]]:
    """The places to handle and those to leave alone.

    spent    by the tape in a pass: what the places do not account for is spent whatever is left
             alone
    allowed  for all of it

    >>> a, b = Site("a", "Mm", "self"), Site("b", "Mm", "self")
    >>> costs = {a: Cost(0.010, 1 << 20), b: Cost(0.010, 1 << 13)}
    >>> kept, left = choose(costs, spent=0.021, allowed=0.012)
    >>> [site.module for site in kept], [site.module for site in left]
    (['a'], ['b'])
    """
    room = allowed - (spent - sum(cost.seconds for cost in costs.values()))
    kept: set[Site] = set()
    for site, cost in sorted(costs.items(), key=lambda item: _worth(item[1])):
        room -= cost.seconds
        if room < 0:
            break
        kept.add(site)
    return kept, set(costs) - kept


def _worth(cost: Cost) -> float:
    """Seconds for each byte saved."""
    return cost.seconds / cost.saved if cost.saved > 0 else math.inf
