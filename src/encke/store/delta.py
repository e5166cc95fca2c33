"""Deltas: what has changed since a file that was stored before.

The difference is taken from what that file *decodes to*, not from what was saved into it, so
errors do not add up along a chain: each link is within its own bound.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from encke.bound import resolve
from encke.ops import quantiser
from encke.store.blobs import LARGEST_CODE, BlobWriter, chunks_of
from encke.store.reader import StateReader
from encke.store.rules import Lattice, Within, encode_lattice, wide_dtype

_SAMPLE = 1 << 16


class Base:
    """The file that a delta is counted from."""

    def __init__(self, path: Path) -> None:
        self.reader = StateReader(path)
        self._names = {entry.name for entry in self.reader.entries}

    @property
    def links(self) -> int:
        """How many files the base itself needs, itself included."""
        return self.reader.links

    def close(self) -> None:
        self.reader.close()

    def reference(self, path: Path) -> dict[str, Any]:
        """What a file at `path` says about its base."""
        where = os.path.relpath(self.reader.path.resolve(), path.resolve().parent)
        return {"file": where, "id": self.reader.identity, "links": self.links}

    def value(self, name: str, x: Tensor) -> Tensor | None:
        """What the base holds of a tensor, if it is of the same kind; on the host."""
        if name not in self._names:
            return None
        entry = self.reader.entry(name)
        if entry.shape != tuple(x.shape) or entry.dtype != x.dtype:
            return None
        return self.reader.tensor(name)

    def unchanged(self, name: str, x: Tensor) -> bool:
        """Whether the base holds the very bits of x."""
        if x.numel() < 64:
            return False  # a reference takes as much
        old = self.value(name, x)
        if old is None:
            return False
        return torch.equal(_bits(old), _bits(x.detach().cpu()))

    def second_moment(self, name: str, x: Tensor, step: float) -> Tensor | None:
        """The base's second moment, where counting from it takes fewer bits."""
        old = self.value(name, x)
        if old is None or not old.is_floating_point() or not bool((old >= 0).all()):
            return None
        if bool(((old > 0) != (x.cpu() > 0)).any()):
            return None
        take = _sampled(x)
        here, there = torch.log2(take(x).double()), torch.log2(take(old).double())
        live = torch.isfinite(here) & torch.isfinite(there)
        if not bool(live.any()):
            return None
        alone = entropy((here - here[live].mean())[live] / step)
        return old if entropy((here - there)[live] / step) < 0.8 * alone else None


def _bits(x: Tensor) -> Tensor:
    flat = x.contiguous().view(-1)
    return flat.view(torch.uint8) if flat.numel() else flat.to(torch.uint8)


def _sampled(x: Tensor) -> Any:
    """A function that picks the same values of every tensor of x's shape."""
    stride = max(1, x.numel() // _SAMPLE)
    return lambda t: t.reshape(-1)[::stride].cpu()


def entropy(values: Tensor) -> float:
    """Bits a value of the nearest whole numbers, if each is coded by its own frequency."""
    _, counts = torch.unique(torch.round(values), return_counts=True)
    shares = counts.to(torch.float64) / max(1, values.numel())
    return float(-(shares * shares.log2()).sum())


def residual_error(x: Tensor, base: Tensor, error: float) -> float:
    """The bound for x − base with which x stays within `error` after the sum is rounded."""
    if x.numel() == 0:
        return 0.0
    largest = float(x.abs().max()) + float(base.abs().max()) + error
    if not math.isfinite(largest):
        return 0.0
    return error - 2.0 * largest * torch.finfo(x.dtype).eps


def worth_it(x: Tensor, base: Tensor, step: float) -> bool:
    """Whether x − base takes fewer bits than x."""
    take = _sampled(x)
    here, there = take(x).double(), take(base).double()
    return entropy((here - there) / step) < 0.95 * entropy(here / step)


def within(
    name: str, x: Tensor, rule: Within, sink: BlobWriter, base: Base | None
) -> dict[str, Any] | None:
    """The entry of x as a difference; None where it is better kept whole."""
    if base is None or not x.is_floating_point() or x.numel() == 0:
        return None
    promise = resolve(rule.bound, x)
    old = base.value(name, x)
    if promise.error is None or old is None:
        return None
    q = quantiser.linear(residual_error(x, old, promise.error), wide_dtype(x.dtype))
    if q.step0 == 0.0 or not worth_it(x, old, q.step0):
        return None
    codes = torch.empty(x.shape, dtype=torch.float32)
    wide = wide_dtype(x.dtype)
    for part, before, after in zip(
        chunks_of(x, dtype=wide), chunks_of(old, dtype=wide), chunks_of(codes), strict=True
    ):
        after.copy_(torch.round((part - before) * (1.0 / q.step0)))
    if not bool((codes.abs() <= LARGEST_CODE).all()):
        return None
    lattice = Lattice(codes=codes, step=q.step0, error=promise.error, on_base=True)
    return encode_lattice(lattice, sink)
