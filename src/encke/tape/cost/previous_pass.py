"""What the ops of each function saved in the pass before, so that less has to be looked at.

Most ops of a network save nothing that is worth storing: parameters, small tensors, places that
are not worth the time. Reading what a node saved takes longer than it takes to find that out
again. The graph of a network rarely changes from step to step, so it is noted by the place in
the pass, and compared with the kinds of the ops and the shape of the result. Where either
differs, everything is forgotten. A wrong guess leaves a tensor to autograd, and nothing worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from encke.tape.observe.records import Record, Records
from encke.tape.storage.byte_count import SavedStorage

_PATIENCE = 8  # passes that did not go as the one before: then nothing is noted any more

Place = tuple[str, str, str]


@dataclass(slots=True)
class Function:
    """One torch function of a pass: its ops, and what they left to autograd.

    kinds     of its nodes
    shape     of its result
    roles     by node: names of the saved tensors that are worth a look
    keeps     whether any of them was stored
    records   of the places that are not worth the time
    left      address and bytes of the storages of these
    small     the same of those that are too small for any work
    """

    kinds: tuple[type, ...]
    shape: tuple[int, ...]
    roles: list[tuple[str, ...]] = field(default_factory=list)
    keeps: bool = False
    records: list[Record] = field(default_factory=list)
    left: dict[int, int] = field(default_factory=dict)
    small: dict[int, int] = field(default_factory=dict)

    def leave(self, record: Record, storage: SavedStorage) -> None:
        """A place is left to autograd."""
        self.records.append(record)
        self.left[storage.address] = storage.nbytes

    def repeat(self, counts: dict[Place, int], records: Records) -> None:
        """Count and record the places that are left to autograd again, in another pass."""
        for record in self.records:
            site = record.site
            place = site.module, site.op, site.role
            counts[place] = counts.get(place, 0) + 1
            records.keep(record)

    def is_made_of(self, nodes: Sequence[Any], shape: Sequence[int]) -> bool:
        kinds = self.kinds
        if len(kinds) != len(nodes) or self.shape != shape:
            return False
        return all(type(node) is kind for node, kind in zip(nodes, kinds, strict=True))


class PreviousPass:
    """The functions of the pass before, by the place of their first op."""

    def __init__(self) -> None:
        self._known: dict[int, Function] = {}
        self._found: dict[int, Function] = {}
        #: Storages of which something is kept in the pass that runs.
        self._kept: set[int] = set()
        self._version: object = None
        self._failures = 0
        self._repeated: list[Function] = []

    def begin(self, version: object) -> None:
        """A pass begins; with another `version` than before, other places are left alone."""
        if version != self._version:
            self._version = version
            self._known.clear()
        self._found.clear()
        self._kept.clear()
        self._repeated.clear()

    def end(self) -> int:
        """A pass has ended: bytes that autograd holds for what was not looked at.

        A function that shares a storage with one that keeps something is looked at each time,
        since what becomes of the one depends on the other.
        """
        for first, function in self._found.items():
            if function.keeps or self._kept.isdisjoint(function.left):
                self._known[first] = function
        self._found.clear()
        held: dict[tuple[int, int], int] = {}
        for function in self._repeated:
            held.update({(a, b): b for a, b in function.small.items()})
            if not function.keeps:
                held.update({(a, b): b for a, b in function.left.items()})
        self._repeated.clear()
        return sum(held.values())

    def find(self, order: int, nodes: Sequence[Any], result: Tensor) -> Function | None:
        """The function whose first op has the place `order`, if it is the same as before."""
        known = self._known.get(order)
        if known is None:
            return None
        if not known.is_made_of(nodes, result.shape):
            self._failures += 1
            self._known.clear()
            self._found.clear()
            return None
        if known.small or known.left:
            self._repeated.append(known)
        return known

    def note(self, order: int, function: Function) -> None:
        """A function was looked at as a whole."""
        if self._failures < _PATIENCE:
            self._found[order] = function

    def keeps(self, address: int) -> None:
        """Something is kept of a storage."""
        self._kept.add(address)
