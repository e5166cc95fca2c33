"""Counting bytes: what the tape holds, and what plain autograd would hold."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(slots=True)
class ByteCount:
    """Bytes held now, and the most that were held at once since `reset_peak`.

    stored  of packed tensors and of those kept as they are
    waiting of norms' inputs that are held, for a few ops, until it is known how to pack them:
            an op's working memory, and not counted as stored
    plain   of the unique storages that autograd alone would keep alive, without parameters
    """

    stored: int = 0
    plain: int = 0
    waiting: int = 0
    stored_peak: int = 0
    plain_peak: int = 0

    def store(self, count: int) -> None:
        self.stored += count
        if self.stored > self.stored_peak:
            self.stored_peak = self.stored

    def keep_plain(self, count: int) -> None:
        self.plain += count
        if self.plain > self.plain_peak:
            self.plain_peak = self.plain

    def reset_peak(self) -> None:
        self.stored_peak, self.plain_peak = self.stored, self.plain


class StoredBytes:
    """Bytes in the ledger for as long as this object lives."""

    __slots__ = ("_count", "_ledger")

    def __init__(self, ledger: ByteCount, count: int) -> None:
        self._ledger, self._count = ledger, count
        ledger.store(count)

    def __del__(self) -> None:
        self._ledger.stored -= self._count


class PlainBytes:
    """Bytes that would be kept without a tape, in the ledger while this object lives."""

    __slots__ = ("_count", "_ledger")

    def __init__(self, ledger: ByteCount, count: int) -> None:
        self._ledger, self._count = ledger, count
        ledger.keep_plain(count)

    def __del__(self) -> None:
        self._ledger.plain -= self._count


class WaitingBytes:
    """Bytes that wait to be packed, in the ledger while this object lives."""

    __slots__ = ("_count", "_ledger")

    def __init__(self, ledger: ByteCount, count: int) -> None:
        self._ledger, self._count = ledger, count
        ledger.waiting += count

    def __del__(self) -> None:
        self._ledger.waiting -= self._count


class SavedStorage:
    """A storage that autograd saved something of; lives as long as anything saved of it.

    The weak reference keeps the storage's identity, not its memory, so an address that the
    allocator hands out again is never mistaken for this storage.
    """

    __slots__ = ("__weakref__", "_ledger", "_reference", "address", "held", "kept", "nbytes")

    def __init__(self, ledger: ByteCount, t: Tensor) -> None:
        storage = t.untyped_storage()
        self.address = storage._cdata
        self._reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.nbytes = storage.nbytes()
        self._ledger = ledger
        #: What is kept of it, by the tape: see `tape.storage.sharing`.
        self.kept: list[tuple[Any, weakref.ref[Any]]] = []
        #: Set while some saved tensor keeps the storage itself alive.
        self.held: weakref.ref[StoredBytes] | None = None
        ledger.keep_plain(self.nbytes)

    def hold(self) -> StoredBytes:
        """The whole storage counts as stored while the result lives, once for all holders."""
        held = self.held() if self.held is not None else None
        if held is None:
            held = _SharedHeld(self._ledger, self.nbytes)
            self.held = weakref.ref(held)
        return held

    def is_held(self) -> bool:
        """Whether the storage itself stays alive for backward, whatever else is kept of it."""
        return self.held is not None and self.held() is not None

    def __del__(self) -> None:
        self._ledger.plain -= self.nbytes


class _SharedHeld(StoredBytes):
    __slots__ = ("__weakref__",)


class Storages:
    """The storages of everything saved and not yet freed."""

    def __init__(self, ledger: ByteCount) -> None:
        self._ledger = ledger
        self._known: weakref.WeakValueDictionary[int, SavedStorage] = (
            weakref.WeakValueDictionary()
        )

    def of(self, t: Tensor) -> SavedStorage:
        """The entry of `t`'s storage, made if there is none."""
        address = t.untyped_storage()._cdata
        entry = self._known.get(address)
        if entry is None:
            entry = SavedStorage(self._ledger, t)
            self._known[address] = entry
        return entry
