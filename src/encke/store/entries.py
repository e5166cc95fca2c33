"""What the index of a file says of each tensor, checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from encke.errors import CorruptStreamError
from encke.store.tree import dtype_of

_RULES = ("values", "lattice", "logarithm", "root", "same", "base", "pruned")
Corrupt = Callable[[str], CorruptStreamError]


class Stored(NamedTuple):
    """What a file says of one tensor."""

    number: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    facts: dict[str, Any]

    @property
    def values(self) -> int:
        return math.prod(self.shape)

    @property
    def how(self) -> str:
        return str(self.facts["how"])


def entries_of(given: Any, corrupt: Corrupt) -> list[Stored]:
    """The tensors of an index; `corrupt` makes the error that names the file."""
    if not isinstance(given, list):
        raise corrupt("has no list of tensors")
    return [_stored(number, facts, corrupt) for number, facts in enumerate(given)]


def _stored(number: int, facts: Any, corrupt: Corrupt) -> Stored:
    shape = facts.get("shape") if isinstance(facts, dict) else None
    if (
        not isinstance(shape, list)
        or len(shape) > 64
        or not all(type(extent) is int and extent >= 0 for extent in shape)
        or math.prod(max(1, extent) for extent in shape) >= 1 << 59
        or not isinstance(facts.get("name"), str)
    ):
        raise corrupt("has a tensor without name or shape")
    if facts.get("how") not in _RULES:
        raise corrupt(
            f"keeps {facts['name']!r} as {facts.get('how')!r}; update Encke to read it"
        )
    dtype = dtype_of(facts.get("dtype"))
    return Stored(number, facts["name"], tuple(shape), dtype, facts)
