"""Reaching a given number of bytes, at the least slow-down and within the tolerance.

Each tensor can be kept in several `ways`, which differ in bytes and in seconds. The plan is
the cheapest choice among them that meets the budget. Bounds are always those of the policy
within.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from encke.control import arguments
from encke.control.ways import Place, Way, choose, measure
from encke.errors import EnckeError, UnsupportedError
from encke.tape.observe.records import Record
from encke.tape.policy import GradientEffect, Policy, SavedTensor, StorageDecision
from encke.tape.storage.byte_count import ByteCount

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_HEADROOM = 0.02  # of the budget: packed tensors vary in size from step to step
_MOST_HEADROOM = 0.25
_SETTLING = 3  # steps observed after a change of what is computed again from what


class BudgetError(EnckeError, ValueError):
    """A budget that cannot be reached within the tolerance."""


def parse_bytes(text: int | str) -> int:
    """A number of bytes, from a number or words.

    >>> parse_bytes("6GiB")
    6442450944
    >>> parse_bytes("500 MB")
    500000000
    """
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    if not found or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise UnsupportedError(
            f"budget is {text!r}; allowed is a number of bytes above zero, or words like "
            "'6GiB', '500MB'"
        )
    return int(float(found[1]) * _UNITS[found[2].upper()])


class Budget:
    """Keeps what the tape holds below `limit` bytes; `inner` sets the bounds.

    The first two steps are as `inner` wants them, to learn the bounds and what each tensor
    costs; from the third on there is a plan, which is made anew whenever `inner` has learnt
    more. Sizes of packed tensors vary: where a step is about to hold more than the limit,
    its next tensors are offloaded. A comparison with the exact tensor (`check`) is left out
    where the limit has no room for it.

    offload  whether packed bytes may leave the device; without, less is possible
    """

    def __init__(self, inner: Policy, limit: int | str, *, offload: bool = True) -> None:
        self.inner, self.limit = arguments.policy(inner), parse_bytes(limit)
        self.offload = offload
        self.refresh = int(getattr(inner, "refresh", 100))
        self.places: dict[str, Place] = {}
        self.plan: dict[str, Way] = {}
        self._chosen: dict[str, tuple[str, str]] = {}
        #: Bytes of what is not a place: in the plan, and found since it was made.
        self._others = self._found = 0
        self._headroom = _HEADROOM
        self._step = 0
        self._since = 0
        self._settling = 0
        self._due = self._measuring = self._checking = False
        self._storages: dict[int, tuple[Any, str]] = {}
        #: What the tape holds; without it, a step that exceeds the plan is seen at its end.
        self.ledger: ByteCount | None = None
        #: By place, in the order of the forward pass: bytes held when it was reached, now,
        #: and those of them that are not a place's, in the step before.
        self._held: dict[str, int] = {}
        self._strange: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._bounds: dict[str, float] = {}
        self._left = self._room = 0

    # -- the tape's questions ------------------------------------------------------------

    def begin(self, step: int) -> None:
        self.inner.begin(step)
        if self._due and self.places:
            self._make_plan()
        self._due = self._checking = False
        self._step += 1
        self._since += 1
        self._settling = max(0, self._settling - 1)
        # Just after `inner` has learnt, which it does more often at first.
        early = self._step > 1 and (self._step - 1) & (self._step - 2) == 0
        self._measuring = early or self._since >= self.refresh
        if self._measuring:
            self._since = 0
        self._storages.clear()
        self._held.clear()
        self._left = sum(self._sizes.values())

    def treat(self, sight: SavedTensor) -> StorageDecision:
        given = self.inner.treat(sight)
        name = str(sight.site)
        if self._measuring:
            self._measure(name, sight.tensor, given)
        way = self.plan.get(name)
        if way is None:
            return given
        if self._exceeds(name, given) and way.bytes:
            way = next((w for w in self.places[name].ways.values() if w.kind == "offload"), way)
        observe = given.observe or self._settling > 0
        if way.kind in ("exact", "lossless"):
            if not observe or given.bound is None or self._all_exact():
                return way.unchanged()
            return replace(given, observe=True, check=False)
        # Beside the exact tensor its packed form takes room, and those after it vary in size.
        least = int((1 + _MOST_HEADROOM) * sight.tensor.untyped_storage().nbytes())
        check = given.check and least + int(_HEADROOM * self.limit) <= self._room
        self._checking |= check
        return way.applied(replace(given, observe=observe, check=check))

    def observe(self, effect: GradientEffect) -> None:
        self.inner.observe(effect)

    @property
    def is_observing(self) -> bool:
        """Whether `inner` observes the forward pass that runs, or this measures it."""
        return self._measuring or bool(getattr(self.inner, "is_observing", False))

    def optimizer_stepped(self) -> None:
        told = getattr(self.inner, "optimizer_stepped", None)
        if told is not None:
            told()

    def backward_ran(self, *, create_graph: bool) -> None:
        told = getattr(self.inner, "backward_ran", None)
        if told is not None:
            told(create_graph=create_graph)

    def kept(self, records: Iterable[Record], stored: int) -> None:
        """What the step that runs has kept, and how many bytes are held."""
        if not self.places:
            return
        mine, whole = 0, set[str]()
        for record in records:
            name = str(record.site)
            place = self.places.get(name)
            if place is None:
                continue
            if record.how == "shared" or (not self.plan and record.why == "kept anyway"):
                for known in (self.places, self.plan, self._sizes):
                    known.pop(name, None)
                continue
            if not self._checking:
                self._strange[name] = self._held.get(name, mine) - mine
            if record.how != "exact":
                mine += record.stored
            elif place.group not in whole:
                mine += place.ways["exact", ""].bytes
                whole.add(place.group)
            self._correct(name, place, record)
        if not self._checking:
            self._found = max(self._found, stored - mine)
            if self.plan and stored > self.limit:
                self._due, self._since = True, self.refresh
                self._headroom = min(2 * self._headroom, _MOST_HEADROOM)
        self._due |= self._measuring

    def told(self) -> dict[str, Any]:
        """As `inner` tells it."""
        return dict(getattr(self.inner, "told", dict)())

    def measured_errors(self) -> dict[str, tuple[float, float]]:
        """As `inner` tells them."""
        found: dict[str, tuple[float, float]] = getattr(self.inner, "measured_errors", dict)()
        return found

    # -- what follows --------------------------------------------------------------------

    def _measure(self, name: str, t: Tensor, given: StorageDecision) -> None:
        found, source = measure(t, given, offload=self.offload)
        storage = t.untyped_storage()
        # The weak reference keeps the address from being given to another in this step.
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        _, group = self._storages.setdefault(storage._cdata, (reference, name))
        place = Place({way.key: way for way in found}, t.numel(), group, source)
        before = self.places.get(name)
        self.places[name] = place if before is None else place.after(before)

    def _exceeds(self, name: str, given: StorageDecision) -> bool:
        """Whether the step comes to hold too much, if all goes on from here as planned."""
        rest, self._left = self._left, self._left - self._sizes.get(name, 0)
        bound = 0.0 if given.bound is None else given.bound.number
        before, self._bounds[name] = self._bounds.get(name, bound), bound
        if 0 < bound < before and self._sizes.get(name):
            # A bound half as large takes a bit more for each value.
            rest += int(self.places[name].values / 8 * math.log2(before / bound))
        if self.ledger is None:
            self._room = self.limit - self._others - sum(self._sizes.values())
            return False
        self._held[name] = held = self.ledger.stored
        strange = self._others - self._strange.get(name, 0)
        room = int(self.limit * (1 - _HEADROOM / 2)) - held - strange
        # A tensor that is checked may take what the next ones leave when they are offloaded.
        self._room = room if self.offload else room - rest
        return rest > room

    def _correct(self, name: str, place: Place, record: Record) -> None:
        """Sizes are known better once a tensor has been packed whole."""
        way = self.plan.get(name)
        if way is None or way.key not in place.ways:
            return
        if way.kind == "recompute" and record.how != "derived":
            del place.ways[way.key]
            self._due = True
        elif way.kind in ("lossy", "lossless") and record.codec == way.codec and record.stored:
            place.ways[way.key] = self.plan[name] = replace(way, bytes=record.stored)
            self._sizes[name] = record.stored

    def _make_plan(self) -> None:
        self._others = self._found
        room = self.limit - self._others
        target = room - int(self._headroom * self.limit)
        chosen = choose(self.places, target, before=self._chosen)
        least = sum(way.bytes for way in chosen.values())
        if least > room:
            raise BudgetError(self._impossible(least, chosen))
        self._found = 0
        self._chosen = {group: way.key for group, way in chosen.items()}
        before = {name for name, way in self.plan.items() if way.kind == "recompute"}
        self._follow()
        if before != {name for name, way in self.plan.items() if way.kind == "recompute"}:
            self._settling = _SETTLING + 1

    def _follow(self) -> None:
        self.plan = {
            name: place.nearest(self._chosen[place.group])
            for name, place in self.places.items()
            if place.group in self._chosen
        }
        whole: set[str] = set()
        for name, way in self.plan.items():
            group = self.places[name].group
            self._sizes[name] = 0 if way.kind == "exact" and group in whole else way.bytes
            whole.add(group)

    def _impossible(self, least: int, chosen: Mapping[str, Way]) -> str:
        reached = least + self._others
        told, needed = self._told(reached)
        text = (
            f"{told}; with each tensor as small as the tolerance "
            f"allows{', recomputed or offloaded' if self.offload else ' or recomputed'}, "
            f"{reached:,} bytes are kept, {self._others:,} of them masks, indices and what "
            "needs every bit. Possible is "
            f"budget={math.ceil(needed / (1 - self._headroom))} or more, or a smaller batch"
        )
        lossy = {g for g, way in chosen.items() if way.kind == "lossy"}
        values = sum(place.values for place in self.places.values() if place.group in lossy)
        missing = reached - self.limit
        if self._others >= self.limit or not values:
            return f"{text}; no tolerance would reach {self.limit:,}"
        rate = 8 * sum(chosen[g].bytes for g in lossy) / values
        wanted = rate - 8 * missing / values
        if wanted <= 0:
            return f"{text}; no tolerance would reach {self.limit:,}"
        # Of values with variance s, an error with variance d leaves about ½ log2(1 + s/d) bits.
        factor = (4.0**rate - 1) / (4.0**wanted - 1)
        tolerance = getattr(self.inner, "tolerance", None)
        if tolerance is None:
            return f"{text}, or bounds about {math.sqrt(factor):.2g} times as large"
        if tolerance * factor > 1:
            return f"{text}; no tolerance up to 1 would reach {self.limit:,}"
        return f"{text}, or about tolerance={tolerance * factor:.2g}"

    def _told(self, reached: int) -> tuple[str, int]:
        """What was asked for, in words, and the least possible where `reached` are kept."""
        return f"budget is {self.limit:,} bytes", reached

    def _all_exact(self) -> bool:
        return all(way.kind == "exact" for way in self.plan.values())

    # -- for checkpoints -----------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "inner": self.inner.state_dict(),
            "step": self._step,
            "since": self._since,
            "others": self._others,
            "headroom": self._headroom,
            "places": {name: place.state() for name, place in self.places.items()},
            "chosen": {group: list(key) for group, key in self._chosen.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self._step, self._since = state["step"], state["since"]
        self._others, self._headroom = state["others"], state["headroom"]
        self.places = {name: Place.of_state(one) for name, one in state["places"].items()}
        self._chosen = {group: (key[0], key[1]) for group, key in state["chosen"].items()}
        self._follow()
