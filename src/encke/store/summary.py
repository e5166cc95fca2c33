"""What a save has done, in numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encke.store.reader import StateReader


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What `encke.store.save` returns.

    nbytes  of the file; plain_nbytes what the tensors take as they are
    exact   states of the optimizer that were not recognised and are kept exactly
    report  what was promised and measured, as the file has it
    links   how many files are needed to load it, itself included
    """

    path: Path
    nbytes: int
    plain_nbytes: int
    report: dict[str, Any] = field(default_factory=dict)
    exact: list[str] = field(default_factory=list)
    links: int = 1

    @property
    def ratio(self) -> float:
        """How many times smaller the file is than the tensors."""
        return self.plain_nbytes / max(1, self.nbytes)

    def __str__(self) -> str:
        told = f"{self.path}: {self.plain_nbytes:,} → {self.nbytes:,} bytes, {self.ratio:.2f}×"
        budget = self.report.get("budget")
        if budget:
            told += f"; loss {budget['loss']:.5g}, allowed +{budget['allowed']:.3g}"
            if budget.get("measured") is not None:
                told += f", measured {budget['measured']:+.3g}"
        return told


def plain_bytes(entries: list[dict[str, Any]]) -> int:
    """Bytes of the tensors of an index as they are; tied ones count once."""
    from encke.store.tree import dtype_of

    return sum(
        math.prod(entry["shape"]) * dtype_of(entry["dtype"]).itemsize
        for entry in entries
        if entry["how"] != "same"
    )


def tensor_bytes(stored: StateReader) -> dict[str, float]:
    """Bytes of the file behind each tensor; of a stream that several share, a part each."""
    return {
        entry.name: stored.blob_bytes(entry.name) if entry.how not in ("same", "base") else 0.0
        for entry in stored.entries
    }
