"""The ways to keep a tensor, what each costs, and the cheapest choice among them.

As it is, lossless, lossy with one codec or another, computed again from another kept tensor,
or packed and moved off the device: the ways differ in bytes and in seconds, and what each
costs is measured on the tensor itself. `cheapest` starts with the fastest way for everyone
and, until the bytes fit, takes the change that costs the fewest seconds for each byte it
saves.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from encke.bound import FixedRate, Lossless
from encke.codec import Packed, compress
from encke.codec.auto import WHOLE, sample
from encke.errors import BoundError, UnsupportedError
from encke.tape.policy import StorageDecision
from encke.tape.recompute.finder import RecomputeFinder
from encke.tape.transfer.spill import Spooled

_AGAIN = ("recompute", "")
_CODECS = ("fixed", "entropy", "predict")
_WORTH = 0.8  # of a plan's seconds: another one that takes more is not worth the change


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

    def applied(self, given: StorageDecision) -> StorageDecision:
        """`given` by the policy within, kept this way."""
        moved = self.kind == "offload"
        if given.bound is None:  # the policy has come to want it exact: then at least packed
            return replace(replace(self, kind="lossless").unchanged(), offload=moved)
        why = f"budget: {self.kind}" + (f"; {given.why}" if given.why else "")
        if self.kind == "recompute":
            return replace(given, recompute=True, why=why)
        return replace(given, codec=self.codec or given.codec, offload=moved, why=why)

    def unchanged(self) -> StorageDecision:
        """Every bit kept, packed or not."""
        bound = None if self.kind == "exact" else Lossless()
        return StorageDecision(
            bound=bound, dither=False, derive=False, why=f"budget: {self.kind}"
        )


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

    def after(self, before: Place) -> Place:
        """This, measured again: what an earlier measurement knows better is kept."""
        ways = dict(self.ways)
        # Other work on the machine only ever makes a measurement longer.
        for key, old in before.ways.items():
            if key in ways and old.seconds < ways[key].seconds:
                ways[key] = replace(ways[key], seconds=old.seconds)
        # Under a plan a source may itself be computed from elsewhere: the first holds.
        if before.source is not None and _AGAIN not in before.ways:
            ways.pop(_AGAIN, None)  # it was tried, and the tape could not
        return Place(ways, self.values, self.group, before.source)

    def state(self) -> list[Any]:
        """For a checkpoint: what `of_state` makes a place of."""
        ways = [[*way.key, way.bytes, way.seconds] for way in self.ways.values()]
        return [ways, self.values, self.group, self.source]

    @classmethod
    def of_state(cls, state: Sequence[Any]) -> Place:
        ways, *rest = state
        return cls({(way[0], way[1]): Way(*way) for way in ways}, *rest)


def choose(
    places: Mapping[str, Place], room: int, *, before: Mapping[str, tuple[str, str]]
) -> dict[str, Way]:
    """One way for each group of places within `room`, as `cheapest` has it.

    before  the ways of the last plan, which stay where others are hardly faster
    """
    groups: dict[str, list[Place]] = {}
    for place in places.values():
        groups.setdefault(place.group, []).append(place)
    choices = {group: _together(members) for group, members in groups.items()}
    sources = {
        place.group: places[place.source].group
        for place in places.values()
        if place.source is not None and place.source in places
    }
    chosen = cheapest(choices, room, sources=sources)
    same = {
        group: way
        for group, ways in choices.items()
        for way in ways
        if way.key == before.get(group)
    }
    if len(same) == len(choices) and sum(way.bytes for way in same.values()) <= room:
        seconds = sum(way.seconds for way in same.values())
        if sum(way.seconds for way in chosen.values()) > _WORTH * seconds:
            return same
    return chosen


def _together(places: Sequence[Place]) -> list[Way]:
    """The ways to keep the tensors of one storage: as it is, all or none."""
    keys = dict.fromkeys(key for place in places for key in place.ways)
    result = []
    for key in keys:
        ways = [place.nearest(key) for place in places]
        size = max(w.bytes for w in ways) if key[0] == "exact" else sum(w.bytes for w in ways)
        result.append(Way(*key, size, sum(way.seconds for way in ways)))
    return result


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


def measure(
    t: Tensor, given: StorageDecision, *, offload: bool
) -> tuple[list[Way], str | None]:
    """The ways to keep `t` and, if it can be computed again, the place it comes from."""
    size = t.untyped_storage().nbytes()
    ways = [Way("exact", "", size, 0.0)]
    source = None
    if given.derive and given.bound is not None:
        for recompute in (False, True):
            exact = isinstance(given.bound, Lossless)
            deriver = RecomputeFinder(arithmetic=not exact, recompute=recompute)
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


def _packings(t: Tensor, given: StorageDecision) -> Iterable[tuple[float, Packed]]:
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
