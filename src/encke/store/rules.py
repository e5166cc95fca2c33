"""How a tensor is kept: the rules, and the way there and back for each.

A rule turns a tensor into blobs and an entry of the index; `decode` goes back by the entry
alone. Entries name their rule under `how`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from encke.bound import Absolute, Bound, Lossless, PointwiseRelative, resolve
from encke.errors import BoundError
from encke.ops import quantiser
from encke.store.blobs import LARGEST_CODE, SMALL, BlobWriter, chunks_of, stored_dtype


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Every bit comes back."""


@dataclass(frozen=True, kw_only=True)
class Within:
    """|decoded − x| within a bound."""

    bound: Bound


@dataclass(frozen=True, kw_only=True, eq=False)
class Lattice:
    """Whole multiples of a step that were chosen beforehand.

    codes     the multiples, in float32 and of the tensor's shape
    step      what they are multiples of
    error     the largest |decoded − x| that the choice allows
    on_base   whether they are added to what the base of a delta holds
    """

    codes: Tensor
    step: float
    error: float
    on_base: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Pruned:
    """A matrix of mostly zeros, which stay zero: positions, and multiples of a step.

    codes  the multiples of the values that are not zero, in order
    """

    codes: Tensor
    step: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Logarithm:
    """decoded/x between 1/factor and factor, zeros exact: for values that are never negative.

    factored  take a factor for each row and each column out first
    """

    factor: float
    factored: bool = True

    def __post_init__(self) -> None:
        if not 1.0 < self.factor <= 16.0:
            raise BoundError(f"factor is {self.factor}, allowed is above 1 and up to 16")


@dataclass(frozen=True, kw_only=True)
class RootRelative:
    """|decoded − x| ≤ ratio · √v of the decoded second moment `of`, zero where that is zero."""

    ratio: float
    of: str


Rule = Exact | Within | Lattice | Pruned | Logarithm | RootRelative
Entry = dict[str, Any]


def encode_exact(x: Tensor, sink: BlobWriter) -> Entry:
    """The entry of a tensor whose bits are kept."""
    flat, dtype = stored_dtype(x)
    blob = sink.values(chunks_of(flat), flat.numel(), dtype, Lossless())
    return {"how": "values", "blob": blob, "error": 0.0}


def encode_within(x: Tensor, bound: Bound, sink: BlobWriter) -> Entry:
    """The entry of a tensor within a bound; small ones as codes, which share a stream."""
    if not x.is_floating_point() or isinstance(bound, Lossless) or x.numel() == 0:
        return encode_exact(x, sink)
    promise = resolve(bound, x)
    if promise.exact:
        return encode_exact(x, sink)
    if promise.rate is not None:
        raise BoundError(f"the store keeps errors, not a rate; the bound is {bound!r}")
    if promise.pointwise is not None:
        blob = sink.values(
            chunks_of(x), x.numel(), x.dtype, PointwiseRelative(promise.pointwise)
        )
        return {"how": "values", "blob": blob, "relative": promise.pointwise}
    assert promise.error is not None
    q = quantiser.linear(promise.error, x.dtype)
    if x.numel() <= SMALL and _fits(x, q):
        codes = (torch.round(chunk * (1.0 / q.step0)) for chunk in _wide(x))
        blob = sink.codes((c.to(torch.float32) for c in codes), x.numel())
        return {"how": "lattice", "blob": blob, "step": q.step0, "error": promise.error}
    blob = sink.values(chunks_of(x), x.numel(), x.dtype, Absolute(promise.error))
    return {"how": "values", "blob": blob, "error": promise.error}


def encode_lattice(rule: Lattice, sink: BlobWriter) -> Entry:
    """The entry of codes that were chosen beforehand."""
    blob = sink.codes(chunks_of(rule.codes), rule.codes.numel())
    entry = {"how": "lattice", "blob": blob, "step": rule.step, "error": rule.error}
    return {**entry, "on": "base"} if rule.on_base else entry


def _fits(x: Tensor, q: quantiser.Quantiser) -> bool:
    if q.step0 == 0.0:
        return False
    largest = float(x.abs().max())
    return math.isfinite(largest) and largest <= min(q.limit0, (LARGEST_CODE - 1) * q.step0)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which codes of `dtype` are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _wide(x: Tensor) -> Iterator[Tensor]:
    return chunks_of(x, dtype=wide_dtype(x.dtype))


def lattice_values(codes: Tensor, step: float, dtype: torch.dtype) -> Tensor:
    """codes · step as a decoder computes it."""
    return (codes.to(wide_dtype(dtype)) * step).to(dtype)
