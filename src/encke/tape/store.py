"""Keeping the values of a tensor once, whoever asks for them and through whatever view."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from encke.tape.kept import Sides, Slot, Source, Whole, Window
from encke.tape.ledger import SavedStorage


def is_dense(t: Tensor) -> bool:
    """Whether a tensor's elements fill a stretch of memory without gaps or overlaps."""
    return t.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(t))


@dataclass(frozen=True, slots=True)
class Geometry:
    """Which elements of a storage a tensor is, and in which version of it."""

    version: int
    dtype: object
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dense: bool

    @classmethod
    def of(cls, t: Tensor) -> Geometry:
        """
        >>> import torch
        >>> Geometry.of(torch.zeros(2, 3)[:, 1]).stride
        (3,)
        """
        dense = is_dense(t)
        return cls(
            t._version,
            t.dtype,
            int(t.storage_offset()),
            tuple(t.shape),
            tuple(t.stride()),
            dense,
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
            and self.offset <= other.offset
            and other._end() <= self._end()
        )


def remember(storage: SavedStorage, geometry: Geometry, kept: Slot | Sides) -> None:
    """Let later tensors of the same storage find what is kept of this one."""
    storage.kept.append((geometry, weakref.ref(kept)))


def find_values(storage: SavedStorage, geometry: Geometry) -> Source | None:
    """A source for a tensor whose values are kept already."""
    for known, reference in storage.kept:
        slot = reference()
        if not isinstance(slot, Slot):
            continue
        if known == geometry:
            return Whole(slot)
        if known.covers(geometry):
            return Window(slot, geometry.size, geometry.stride, geometry.offset - known.offset)
    return None


def find_sides(storage: SavedStorage, geometry: Geometry) -> Sides | None:
    """The mask that is kept of the very same tensor."""
    for known, reference in storage.kept:
        sides = reference()
        if isinstance(sides, Sides) and known == geometry:
            return sides
    return None
