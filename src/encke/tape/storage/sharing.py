"""Keeping the values of a tensor once, whoever asks for them and through whatever view."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from encke.tape.storage.byte_count import SavedStorage
from encke.tape.storage.sources import SignMask, StoredSource, TensorSource, ViewSource
from encke.tape.storage.stored_tensor import StoredTensor


def is_dense(t: Tensor) -> bool:
    """Whether a tensor's elements fill a stretch of memory without gaps or overlaps."""
    return t.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(t))


def overlaps(t: Tensor) -> bool:
    """Whether two elements of a tensor may lie at the same place in memory.

    >>> overlaps(torch.zeros(4, 6)[:, ::2]), overlaps(torch.zeros(4, 1).expand(4, 6))
    (False, True)
    """
    reach = 0
    for stride, count in sorted(zip(t.stride(), t.shape, strict=True)):
        if count > 1 and stride <= reach:
            return True
        reach += stride * (count - 1)
    return False


def unexpanded(t: Tensor) -> Tensor | None:
    """The elements that an expanded tensor repeats; None if it repeats none.

    >>> unexpanded(torch.zeros(4, 1).expand(4, 6)).shape
    torch.Size([4, 1])
    """
    if 0 not in t.stride():
        return None
    size = [1 if stride == 0 else n for n, stride in zip(t.shape, t.stride(), strict=True)]
    if size == list(t.shape):
        return None
    return t.as_strided(size, t.stride(), t.storage_offset())


class Geometry(NamedTuple):
    """Which elements of a storage a tensor is, and in which version of it."""

    version: int
    dtype: object
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dense: bool
    #: Whether the values are the conjugates or negatives of what lies in memory.
    turned: bool

    @classmethod
    def of(cls, t: Tensor) -> Geometry:
        """
        >>> import torch
        >>> Geometry.of(torch.zeros(2, 3)[:, 1]).stride
        (3,)
        """
        return cls(
            t._version,
            t.dtype,
            int(t.storage_offset()),
            tuple(t.shape),
            t.stride(),
            is_dense(t),
            t.is_neg() or t.is_conj(),
        )

    def _end(self) -> int:
        return self.offset + sum(
            (n - 1) * s for n, s in zip(self.size, self.stride, strict=True)
        )

    def covers(self, other: Geometry) -> bool:
        """Whether every element of `other` is one of this, which leaves no gaps."""
        return (
            self.dense
            and self.version == other.version
            and self.dtype == other.dtype
            and self.turned == other.turned
            and self.offset <= other.offset
            and other._end() <= self._end()
        )


def remember(storage: SavedStorage, geometry: Geometry, kept: StoredTensor | SignMask) -> None:
    """Let later tensors of the same storage find what is kept of this one."""
    storage.kept.append((geometry, weakref.ref(kept)))


def find_values(storage: SavedStorage, geometry: Geometry) -> TensorSource | None:
    """A source for a tensor whose values are kept already."""
    for known, reference in storage.kept:
        slot = reference()
        if not isinstance(slot, StoredTensor) or (
            slot.gate is not None and not slot.gate.complete
        ):
            continue  # what a gate leaves out, another op may need
        if known == geometry:
            return StoredSource(slot)
        if known.covers(geometry):
            return ViewSource(
                slot, geometry.size, geometry.stride, geometry.offset - known.offset
            )
    return None


def find_exact(storage: SavedStorage, geometry: Geometry) -> StoredTensor | None:
    """The slot that holds the very same tensor as it is."""
    for known, reference in storage.kept:
        slot = reference()
        if known == geometry and isinstance(slot, StoredTensor) and slot.kind == "exact":
            return slot
    return None


def find_sides(storage: SavedStorage, geometry: Geometry) -> SignMask | None:
    """The mask that is kept of the very same tensor."""
    for known, reference in storage.kept:
        sides = reference()
        if isinstance(sides, SignMask) and known == geometry:
            return sides
    return None
