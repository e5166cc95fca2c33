"""Payloads that were made in this process: what is known of them need not be read again.

A decoder that is handed bytes must look at them before it believes them, and looking at
device memory makes the host wait. Of a payload that an encoder here has just made, the
parameters are known and the rules are kept, unless somebody has written to it since, which
its version tells. Kernels stay inside a payload whatever it holds, so being wrong here could
give wrong values but no wrong access.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor


class Made:
    """What encoders know of their payloads, for as long as those live."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int, Any]] = {}

    def note(self, payload: Tensor, facts: Any) -> Tensor:
        """Remember `facts` of a payload, which is returned."""
        key = id(payload)
        reference = weakref.ref(payload, lambda _: self._known.pop(key, None))
        self._known[key] = reference, payload._version, facts
        return payload

    def of(self, payload: Tensor) -> Any | None:
        """What was noted, or None if the payload is a stranger or was written to."""
        found = self._known.get(id(payload))
        if found is None or found[0]() is not payload or found[1] != payload._version:
            return None
        return found[2]

    def carry(self, old: Tensor, new: Tensor) -> Tensor:
        """`new` holds the bytes that `old` held, moved: what is known goes with them."""
        facts = self.of(old)
        return new if facts is None else self.note(new, facts)
