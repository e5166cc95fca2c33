"""A stored state, opened: any tensor by name, without reading the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from encke.store import logarithm, pruned, root
from encke.store.blobs import STAND_INS, BlobReader
from encke.store.container import Part, PartReader
from encke.store.entries import Stored, entries_of
from encke.store.errors import StoreError
from encke.store.rules import lattice_values
from encke.store.tree import rebuilt

#: Keys of an entry that name blobs.
_BLOBS = ("blob", "rows", "columns", *(f"mask{n}" for n in range(pruned.CLASSES)))
#: Longer chains of deltas are refused, so that no file can ask for endless reading.
MAX_LINKS = 1000


class StateReader:
    """Opens a file and checks its index; tensors are read when they are asked for.

    >>> import tempfile, encke
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.encke"
    ...     _ = encke.store.save(path, {"w": torch.arange(3.0)})
    ...     with StateReader(path) as stored:
    ...         stored.names, stored.tensor("model/w")
    (['model/w'], tensor([0., 1., 2.]))
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._parts = PartReader(self.path)
        try:
            index = self._parts.index
            if index.get("format") != "encke state":
                raise self._parts.corrupt("is no stored state")
            self._blobs = BlobReader(self._parts)
            self.entries = entries_of(index.get("tensors"), self._parts.corrupt)
            self._by_name = {entry.name: entry for entry in self.entries}
            if len(self._by_name) != len(self.entries):
                raise self._parts.corrupt("has two tensors of one name")
            self._base_facts = self._checked_base(index.get("base"))
        except BaseException:
            self._parts.close()
            raise
        self._base: StateReader | None = None
        self._busy: set[int] = set()
        self._recent: tuple[int, Tensor] | None = None

    # -- what the file says --------------------------------------------------------------

    @property
    def index(self) -> dict[str, Any]:
        return self._parts.index

    @property
    def report(self) -> dict[str, Any]:
        """What was promised and measured when the file was written."""
        found = self.index.get("report")
        return found if isinstance(found, dict) else {}

    @property
    def identity(self) -> str:
        return str(self.index.get("id", ""))

    @property
    def links(self) -> int:
        """How many files are needed to read this one, itself included."""
        return 1 if self._base_facts is None else 1 + int(self._base_facts["links"])

    @property
    def base_path(self) -> Path | None:
        if self._base_facts is None:
            return None
        return self.path.resolve().parent / str(self._base_facts["file"])

    @property
    def size(self) -> int:
        return self._parts.size

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self.entries]

    def entry(self, name: str) -> Stored:
        if name not in self._by_name:
            raise StoreError(f"{self.path} has no tensor {name!r}")
        return self._by_name[name]

    # -- reading -------------------------------------------------------------------------

    def tensor(self, name: str) -> Tensor:
        """One tensor, on the host."""
        return self._tensor(self.entry(name))

    def state(self, tensors: Sequence[Any]) -> Any:
        """The state with `tensors`, in the order of `entries`, in their places."""
        return rebuilt(self.index.get("tree"), tensors)

    def parts_of(self, name: str) -> list[Part]:
        """The parts of this file that a tensor depends on."""
        entry = self.entry(name)
        blobs = [
            entry.facts[key]
            for key in ("blob", "rows", "columns", "mask")
            if key in entry.facts
        ]
        found = [place for blob in blobs for place in self._blobs.places(blob)]
        if entry.how == "same":
            found += self.parts_of(self._referred(entry, "as").name)
        if entry.how == "root":
            found += self.parts_of(self._referred(entry, "of").name)
        return found

    def blob_bytes(self, name: str) -> float:
        """Bytes of this file that hold a tensor's own blobs."""
        facts = self.entry(name).facts
        return sum(self._blobs.nbytes(facts[key]) for key in _BLOBS if key in facts)

    def check(self, name: str) -> None:
        """Raise unless the bytes of a tensor, here and in the bases, are those written."""
        for place in dict.fromkeys(self.parts_of(name)):
            self._parts.part(place)
        if self.needs_base(name):
            self.base().check(name)

    def needs_base(self, name: str) -> bool:
        facts = self.entry(name).facts
        if facts["how"] == "same":
            return self.needs_base(self._referred(self.entry(name), "as").name)
        if facts["how"] == "root":
            return self.needs_base(self._referred(self.entry(name), "of").name)
        return facts["how"] == "base" or facts.get("on") == "base"

    def base(self) -> StateReader:
        """The file that deltas are counted from, opened."""
        if self._base is None:
            path, facts = self.base_path, self._base_facts
            if path is None or facts is None:
                raise self._parts.corrupt("needs a base and names none")
            if not path.is_file():
                raise StoreError(
                    f"{self.path} holds what changed since {path.name}, which is not there; "
                    "put it back, load with partial=True what needs no base, or go back to a "
                    "full file"
                )
            found = StateReader(path)
            if found.identity != facts["id"] or found.links > int(facts["links"]):
                found.close()
                raise StoreError(
                    f"{self.path} holds what changed since another {path.name} than the one "
                    "that is there now"
                )
            self._base = found
        return self._base

    def close(self) -> None:
        self._parts.close()
        if self._base is not None:
            self._base.close()

    def __enter__(self) -> StateReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------

    def _tensor(self, entry: Stored) -> Tensor:
        if entry.number in self._busy:
            raise self._parts.corrupt(f"has tensors that refer to each other: {entry.name}")
        if self._recent is not None and self._recent[0] == entry.number:
            found, self._recent = self._recent[1], None
            return found
        self._busy.add(entry.number)
        try:
            return self._decoded(entry).view(entry.shape)
        finally:
            self._busy.discard(entry.number)

    def _decoded(self, entry: Stored) -> Tensor:
        facts, how = entry.facts, entry.how
        if how == "base":
            return self._from_base(entry)
        if how == "same":
            other = self._referred(entry, "as")
            if (other.shape, other.dtype) != (entry.shape, entry.dtype):
                raise self._parts.corrupt(f"has {entry.name} the same as {other.name}")
            return self._tensor(other)
        if how == "values":
            return self._values(entry)
        old = self._from_base(entry) if facts.get("on") == "base" else None
        if how == "pruned":
            return pruned.decode(facts, entry.shape, entry.dtype, self._codes)
        if how == "logarithm":
            return logarithm.decode(facts, entry.shape, entry.dtype, self._codes, old)
        codes = self._codes(facts.get("blob"), entry.values)
        if how == "root":
            other = self._referred(entry, "of")
            if other.shape != entry.shape:
                raise self._parts.corrupt(f"has {entry.name} beside {other.name}")
            v = self._tensor(other)
            self._recent = (other.number, v)  # it is asked for next
            return root.decode(facts, codes, v, entry.dtype)
        step = facts.get("step")
        if not isinstance(step, float) or not entry.dtype.is_floating_point:
            raise self._parts.corrupt(f"has no step for {entry.name}")
        if old is None:
            return lattice_values(codes, step, entry.dtype)
        wide = lattice_values(
            codes, step, torch.float64 if old.dtype == torch.float64 else torch.float32
        )
        return (old.reshape(-1).to(wide.dtype) + wide).to(entry.dtype)

    def _codes(self, blob: object, count: int) -> Tensor:
        return self._blobs.read(blob, count, torch.float32)

    def _values(self, entry: Stored) -> Tensor:
        blob = entry.facts.get("blob")
        if entry.dtype.itemsize not in STAND_INS:
            raise self._parts.corrupt(f"has {entry.name} of {entry.dtype}")
        stored = self._blobs.dtype(blob)
        if stored == entry.dtype:
            return self._blobs.read(blob, entry.values, stored)
        if stored != STAND_INS[entry.dtype.itemsize]:
            raise self._parts.corrupt(f"has {stored} for {entry.name}, which is {entry.dtype}")
        count = entry.values * entry.dtype.itemsize // stored.itemsize
        bits = self._blobs.read(blob, count, stored)
        return bits.view(entry.dtype) if count else torch.empty(0, dtype=entry.dtype)

    def _from_base(self, entry: Stored) -> Tensor:
        found = self.base().entry(entry.name)
        if (found.shape, found.dtype) != (entry.shape, entry.dtype):
            raise self._parts.corrupt(f"has another {entry.name} than its base")
        return self.base()._tensor(found)

    def _referred(self, entry: Stored, key: str) -> Stored:
        number = entry.facts.get(key)
        if type(number) is not int or not 0 <= number < len(self.entries):
            raise self._parts.corrupt(f"has {entry.name} refer to tensor {number!r}")
        other = self.entries[number]
        if other.how in ("same", "root") or number == entry.number:
            raise self._parts.corrupt(f"has {entry.name} refer to {other.name}")
        return other

    def _checked_base(self, facts: Any) -> dict[str, Any] | None:
        if facts is None:
            return None
        if (
            not isinstance(facts, dict)
            or not isinstance(facts.get("file"), str)
            or not isinstance(facts.get("id"), str)
            or type(facts.get("links")) is not int
            or not 0 < facts["links"] <= MAX_LINKS
            or "\0" in facts["file"]
        ):
            raise self._parts.corrupt("has a base that cannot be one")
        return facts
