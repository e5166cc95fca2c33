"""Reaching a given number of bytes, at the least slow-down and within the tolerance.

Each tensor can be kept in several ways, which differ in bytes and in seconds: as it is,
lossless, lossy with one codec or another, computed again from another kept tensor, or packed
and moved off the device. What each costs is measured on the tensor itself. The plan starts
with the fastest way for everyone and, until the budget is met, takes the change that costs
the fewest seconds for each byte it saves. Bounds are always those of the policy within.
"""

from __future__ import annotations

import heapq
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from encke.bound import FixedRate, Lossless
from encke.codec import Packed, compress
from encke.codec.auto import WHOLE, sample
from encke.errors import BoundError, EnckeError, UnsupportedError
from encke.tape.derive import Deriver
from encke.tape.ledger import Ledger
from encke.tape.offload import Spooled
from encke.tape.protocol import Effect, Policy, Sight, Treatment
from encke.tape.records import Record

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_CODECS = ("fixed", "entropy", "predict")
_AGAIN = ("recompute", "")
_HEADROOM = 0.02  # of the budget: packed tensors vary in size from step to step
_MOST_HEADROOM = 0.25
_WORTH = 0.8  # of a plan's seconds: another one that takes more is not worth the change
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
    if isinstance(text, int) and text > 0:
        return text
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    if not found or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise UnsupportedError(
            f"budget is {text!r}; allowed is a number of bytes above zero, or words like "
            "'6GiB', '500MB'"
        )
    return int(float(found[1]) * _UNITS[found[2].upper()])


@dataclass(frozen=True, slots=True)
class Way:
    """A way to keep a tensor, and what it costs.

    kind     exact, lossless, lossy, derived, recompute or offload
    bytes    held until backward
    seconds  to pack and to get back
    """

    kind: str
    codec: str
    bytes: int
    seconds: float

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.codec


@dataclass(slots=True)
class Place:
    """A tensor of the model.

    group   places whose tensors share a storage: as they are, they are kept together
    source  the place that it would be computed again from
    """

    ways: dict[tuple[str, str], Way]
    values: int
    group: str
    source: str | None = None

    def nearest(self, key: tuple[str, str]) -> Way:
        """The way of that kind and codec, or the smallest that packs as well."""
        if key in self.ways:
            return self.ways[key]
        packed = [way for way in self.ways.values() if way.kind != "exact"]
        return min(packed or self.ways.values(), key=lambda way: (way.bytes, way.seconds))


def cheapest(
    choices: Mapping[str, Sequence[Way]],
    room: int,
    *,
    sources: Mapping[str, str] | None = None,
) -> dict[str, Way]:
    """One way for each name with at most `room` bytes in all; else with as few as there can be.

    A tensor that is computed again needs its source to be kept, so that not both are
    recomputed.

    >>> exact, lossy = Way("exact", "", 100, 0.0), Way("lossy", "fixed", 10, 2.0)
    >>> slow = Way("lossy", "fixed", 10, 9.0)
    >>> plan = cheapest({"a": [exact, slow], "b": [exact, lossy]}, 150)
    >>> plan["a"].kind, plan["b"].kind
    ('exact', 'lossy')
    """
    needs = dict(sources or {})
    plan = {
        name: min(ways, key=lambda w: (w.seconds, w.bytes)) for name, ways in choices.items()
    }
    total = sum(way.bytes for way in plan.values())

    def allowed(name: str, way: Way) -> bool:
        if way.kind != "recompute":
            return True
        again = {other for other, chosen in plan.items() if chosen.kind == "recompute"}
        return needs.get(name) not in again and name not in {needs.get(o) for o in again}

    def offer(name: str) -> None:
        now = plan[name]
        slopes = [
            (
                (way.seconds - now.seconds) / (now.bytes - way.bytes),
                way.bytes,
                name,
                way.key,
                way,
            )
            for way in choices[name]
            if way.bytes < now.bytes and allowed(name, way)
        ]
        if slopes:
            heapq.heappush(heap, min(slopes))

    heap: list[tuple[float, int, str, tuple[str, str], Way]] = []
    for name in choices:
        offer(name)
    while heap and total > room:
        *_, name, _key, way = heapq.heappop(heap)
        if allowed(name, way):
            total += way.bytes - plan[name].bytes
            plan[name] = way
        offer(name)
    # The last change may have saved more than was needed: give back what fits.
    for name in sorted(plan, key=lambda name: -plan[name].seconds):
        fits = [
            way
            for way in choices[name]
            if total + way.bytes - plan[name].bytes <= room and allowed(name, way)
        ]
        best = min(fits, key=lambda w: w.seconds, default=plan[name])
        if best.seconds < plan[name].seconds:
            total += best.bytes - plan[name].bytes
            plan[name] = best
    return plan


def measure(t: Tensor, given: Treatment, *, offload: bool) -> tuple[list[Way], str | None]:
    """The ways to keep `t` and, if it can be computed again, the place it comes from."""
    size = t.untyped_storage().nbytes()
    ways = [Way("exact", "", size, 0.0)]
    source = None
    if given.derive and given.bound is not None:
        for recompute in (False, True):
            exact = isinstance(given.bound, Lossless)
            deriver = Deriver(arithmetic=not exact, recompute=recompute)
            found = deriver.value_of(t.grad_fn, tuple(t.shape))
            slot = None if found is None else next(found.slots(), None)
            if found is None or slot is None:
                continue
            seconds, _ = _timed(found.get, t.device)
            ways.append(Way(*(_AGAIN if recompute else ("derived", "")), 0, seconds))
            if not recompute:
                return ways, None
            source = str(slot.site)
    trial = t.detach() if t.numel() <= WHOLE else sample(t.detach().contiguous())
    scale = t.numel() / trial.numel()
    packed = list(_packings(trial, given))
    for seconds, one in packed:
        kind = "lossless" if isinstance(one.bound, Lossless) else "lossy"
        ways.append(Way(kind, one.codec, int(one.nbytes * scale), seconds * scale))
    if offload and packed:
        _, smallest = min(packed, key=lambda pair: pair[1].nbytes)
        moved, _ = _timed(lambda: Spooled(smallest).decompress(), t.device)
        into = next(seconds for seconds, one in packed if one is smallest)
        ways.append(Way("offload", smallest.codec, 0, (moved + into) * scale))
    return ways, source


def _packings(t: Tensor, given: Treatment) -> Iterable[tuple[float, Packed]]:
    """`t` packed within the bound and without loss, with the seconds there and back."""
    tried: list[tuple[Any, str]] = [(Lossless(), "auto")]
    if given.bound is not None and not isinstance(given.bound, Lossless):
        any_codec = given.codec == "auto" and not isinstance(given.bound, FixedRate)
        tried += [(given.bound, codec) for codec in (_CODECS if any_codec else (given.codec,))]
    for bound, codec in tried:
        lossy = not isinstance(bound, Lossless) and codec != "group"
        pack = partial(
            compress, t, bound, codec=codec, dither=given.dither and lossy, keep_nonzero=lossy
        )
        try:
            there, packed = _timed(pack, t.device)
        except (BoundError, UnsupportedError):
            continue  # not every codec takes every tensor
        back, _ = _timed(packed.decompress, t.device)
        yield there + back, packed


def _timed(call: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, result


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
        self.inner, self.limit = inner, parse_bytes(limit)
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
        self.ledger: Ledger | None = None
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

    def treat(self, sight: Sight) -> Treatment:
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
                return _as_it_was(way, given)
            return replace(given, observe=True, check=False)
        check = given.check and sight.tensor.untyped_storage().nbytes() <= self._room
        self._checking |= check
        return _apply(way, replace(given, observe=observe, check=check))

    def observe(self, effect: Effect) -> None:
        self.inner.observe(effect)

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

    def measured_errors(self) -> dict[str, tuple[float, float]]:
        """As `inner` tells them."""
        found: dict[str, tuple[float, float]] = getattr(self.inner, "measured_errors", dict)()
        return found

    # -- what follows --------------------------------------------------------------------

    def _measure(self, name: str, t: Tensor, given: Treatment) -> None:
        found, source = measure(t, given, offload=self.offload)
        storage = t.untyped_storage()
        # The weak reference keeps the address from being given to another in this step.
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        _, group = self._storages.setdefault(storage._cdata, (reference, name))
        before = self.places.get(name)
        ways = {way.key: way for way in found}
        if before is not None:
            # Other work on the machine only ever makes a measurement longer.
            for key, old in before.ways.items():
                if key in ways and old.seconds < ways[key].seconds:
                    ways[key] = replace(ways[key], seconds=old.seconds)
            # Under a plan a source may itself be computed from elsewhere: the first holds.
            source = before.source
            if source is not None and _AGAIN not in before.ways:
                ways.pop(_AGAIN, None)  # it was tried, and the tape could not
        self.places[name] = Place(ways, t.numel(), group, source)

    def _exceeds(self, name: str, given: Treatment) -> bool:
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
        groups: dict[str, list[str]] = {}
        for name, place in self.places.items():
            groups.setdefault(place.group, []).append(name)
        choices = {
            group: _together([self.places[name] for name in names])
            for group, names in groups.items()
        }
        sources = {
            place.group: self.places[place.source].group
            for place in self.places.values()
            if place.source in self.places
        }
        room = self.limit - self._others
        target = room - int(self._headroom * self.limit)
        chosen = cheapest(choices, target, sources=sources)
        same = {
            group: way
            for group, ways in choices.items()
            for way in ways
            if way.key == self._chosen.get(group)
        }
        if len(same) == len(choices) and sum(w.bytes for w in same.values()) <= target:
            seconds = sum(way.seconds for way in same.values())
            if sum(way.seconds for way in chosen.values()) > _WORTH * seconds:
                chosen = same
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
        text = (
            f"budget is {self.limit:,} bytes; with each tensor as small as the tolerance "
            f"allows{', recomputed or offloaded' if self.offload else ' or recomputed'}, "
            f"{reached:,} bytes are kept, {self._others:,} of them masks, indices and what "
            "needs every bit. Possible is "
            f"budget={math.ceil(reached / (1 - self._headroom))} or more, or a smaller batch"
        )
        values = sum(
            place.values
            for place in self.places.values()
            if chosen[place.group].kind == "lossy"
        )
        missing = reached - self.limit
        if self._others >= self.limit or not values:
            return f"{text}; no tolerance would reach {self.limit:,}"
        # A bound twice as large saves a bit a value; variance goes with its square.
        factor = 4.0 ** (8 * missing / values)
        tolerance = getattr(self.inner, "tolerance", None)
        if tolerance is None:
            return f"{text}, or bounds about {math.sqrt(factor):.2g} times as large"
        if tolerance * factor > 1:
            return f"{text}; no tolerance up to 1 would reach {self.limit:,}"
        return f"{text}, or about tolerance={tolerance * factor:.2g}"

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
            "places": {
                name: [
                    [[*way.key, way.bytes, way.seconds] for way in place.ways.values()],
                    *(place.values, place.group, place.source),
                ]
                for name, place in self.places.items()
            },
            "chosen": {group: list(key) for group, key in self._chosen.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self._step, self._since = state["step"], state["since"]
        self._others, self._headroom = state["others"], state["headroom"]
        self.places = {
            name: Place({(way[0], way[1]): Way(*way) for way in ways}, *rest)
            for name, (ways, *rest) in state["places"].items()
        }
        self._chosen = {group: (key[0], key[1]) for group, key in state["chosen"].items()}
        self._follow()


def _together(places: Sequence[Place]) -> list[Way]:
    """The ways to keep the tensors of one storage: as it is, all or none."""
    keys = dict.fromkeys(key for place in places for key in place.ways)
    result = []
    for key in keys:
        ways = [place.nearest(key) for place in places]
        size = max(w.bytes for w in ways) if key[0] == "exact" else sum(w.bytes for w in ways)
        result.append(Way(*key, size, sum(way.seconds for way in ways)))
    return result


def _as_it_was(way: Way, given: Treatment) -> Treatment:
    """Every bit kept, packed or not."""
    bound = None if way.kind == "exact" else Lossless()
    return Treatment(bound=bound, dither=False, derive=False, why=f"budget: {way.kind}")


def _apply(way: Way, given: Treatment) -> Treatment:
    moved = way.kind == "offload"
    if given.bound is None:  # the policy has come to want it exact: then at least packed
        return replace(_as_it_was(replace(way, kind="lossless"), given), offload=moved)
    why = f"budget: {way.kind}" + (f"; {given.why}" if given.why else "")
    if way.kind == "recompute":
        return replace(given, recompute=True, why=why)
    return replace(given, codec=way.codec or given.codec, offload=moved, why=why)
