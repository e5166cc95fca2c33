"""Ops that keep nothing small: known from an earlier pass, and passed over at once.

Most ops of a network save nothing, or only what is left to autograd: parameters, small tensors,
places that are not worth the time. Reading what a node saved takes longer than it takes to find
that out again. The graph of a network rarely changes from step to step, so it is noted by the
place in the pass, and compared with the kind of the op and its result's shape. Where either
differs, everything is forgotten. A wrong guess leaves a tensor to autograd, and nothing worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from encke.tape.ledger import SavedStorage
from encke.tape.records import Record, Records

_PATIENCE = 8  # passes that did not go as the one before: then nothing is noted any more

Place = tuple[str, str, str]


@dataclass(slots=True)
class Entry:
    """What one torch function did: its nodes, and what they left to autograd.

    records   of the places that are not worth the time
    storages  address and bytes of each that autograd holds, small ones among them
    """

    kinds: tuple[type, ...]
    shape: tuple[int, ...]
    records: list[Record] = field(default_factory=list)
    storages: dict[int, int] = field(default_factory=dict)

    def leave(self, record: Record, storage: SavedStorage) -> None:
        """A place is left to autograd."""
        self.records.append(record)
        self.storages[storage.address] = storage.nbytes

    def again(self, counts: dict[Place, int], records: Records) -> None:
        """Count and record the same places in another pass."""
        for record in self.records:
            site = record.site
            place = site.module, site.op, site.role
            counts[place] = counts.get(place, 0) + 1
            records.keep(record)


class Idle:
    """What is known of the functions of a forward pass, by the place of their first op."""

    def __init__(self) -> None:
        self._known: dict[int, Entry] = {}
        self._found: dict[int, Entry] = {}
        #: Storages of which something is kept in the pass that runs.
        self._kept: set[int] = set()
        self._version: object = None
        self._failures = 0
        self._passed: list[Entry] = []

    def begin(self, version: object) -> None:
        """A pass begins; with another `version` than before, other places are left alone."""
        if version != self._version:
            self._version = version
            self._known.clear()
        self._found.clear()
        self._kept.clear()
        self._passed.clear()

    def end(self) -> int:
        """A pass has ended: bytes that autograd holds for the functions passed over.

        An op that shares a storage with one that keeps something is looked at each time, since
        what becomes of the one depends on the other.
        """
        for first, entry in self._found.items():
            if self._kept.isdisjoint(entry.storages):
                self._known[first] = entry
        self._found.clear()
        held: dict[tuple[int, int], int] = {}
        for entry in self._passed:
            held.update({(a, b): b for a, b in entry.storages.items()})
        self._passed.clear()
        return sum(held.values())

    def passes_over(self, order: int, nodes: Sequence[Any], result: Tensor) -> Entry | None:
        """What is known of a function whose first op has the place `order`, if it is this."""
        entry = self._known.get(order)
        if entry is None:
            return None
        if (
            len(entry.kinds) != len(nodes)
            or entry.shape != tuple(result.shape)
            or any(
                type(node) is not kind for node, kind in zip(nodes, entry.kinds, strict=True)
            )
        ):
            self._failures += 1
            self._known.clear()
            self._found.clear()
            return None
        self._passed.append(entry)
        return entry

    def note(self, order: int, entry: Entry) -> None:
        """A function kept nothing."""
        if self._failures < _PATIENCE:
            self._found[order] = entry

    def keeps(self, address: int) -> None:
        """Something is kept of a storage."""
        self._kept.add(address)
