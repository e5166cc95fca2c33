"""Some rows of a batch, in place of all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from encke.tape.storage.byte_count import ByteCount, StoredBytes

_CHECKED = 1 << 18  # values whose exact form is held beside for a check


class Rows(NamedTuple):
    """The rows from `begin` up to `end` of a batch."""

    begin: int
    end: int
    batch: int

    @classmethod
    def of(cls, t: Tensor, *, most: int, seed: int) -> Rows:
        """As many as have `most` values, and not the same for every seed.

        >>> import torch
        >>> Rows.of(torch.zeros(8, 100), most=250, seed=0)
        Rows(begin=0, end=2, batch=8)
        """
        batch = t.shape[0] if t.ndim else 1
        count = max(1, min(batch, most * batch // max(1, t.numel())))
        begin = (seed * 7919) % (batch - count + 1)
        return cls(begin, begin + count, batch)

    @property
    def times(self) -> float:
        """How many times as many the batch has."""
        return self.batch / (self.end - self.begin)

    def cut(self, t: Tensor, dimensions: int) -> Tensor:
        """These rows of a tensor; all of it where it does not have one for each."""
        if t.ndim == dimensions and t.ndim and t.shape[0] == self.batch:
            return t[self.begin : self.end]
        return t

    def size(self, shape: Sequence[int], dimensions: int) -> tuple[int, ...]:
        """The shape of what `cut` gives of a tensor of this shape."""
        if len(shape) == dimensions and shape and shape[0] == self.batch:
            return (self.end - self.begin, *shape[1:])
        return tuple(shape)


class ExactRows:
    """Exact rows of a tensor that is kept with an error, to compare gradients with."""

    __slots__ = ("_exact", "_held", "_rows")

    def __init__(self, t: Tensor, ledger: ByteCount, *, seed: int) -> None:
        self._rows = Rows.of(t, most=_CHECKED, seed=seed)
        self._exact = self._rows.cut(t.detach(), t.ndim).clone()
        self._held = StoredBytes(ledger, self._exact.numel() * self._exact.element_size())

    @property
    def times(self) -> float:
        """How many times as large the error of all rows is."""
        return self._rows.times

    @property
    def rows(self) -> Rows:
        return self._rows

    def put_into(self, decoded: Tensor) -> Tensor:
        """Decoded values with the exact rows in their place; in place."""
        self._rows.cut(decoded, decoded.ndim).copy_(self._exact)
        return decoded
