"""Norms that wait to see whether a ReLU follows.

What a norm's input is packed as depends on what becomes of the norm's output (`masked`).
So the input is held as it is for the few ops until that is known: until the next op starts
after the ReLU, when whoever wrote the model has let go of what lies between. If anything else
could still use the norm's output, nothing is left out.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from encke.tape.autograd.nodes import newest, op_name
from encke.tape.storage.sources import SignMask

_PATIENCE = 6  # ops that a norm waits: a shortcut's convolution and norm come between


@dataclass(frozen=True, slots=True)
class Passage:
    """The ReLU that a norm's output goes into.

    sides  which values it lets through
    sum    the sum between the two, if there is one
    out    what the ReLU put out, as it did, if that is still there
    """

    sides: SignMask
    sum: Any
    out: Tensor | None


class PendingNorm:
    """A norm that waits.

    pack  called once, with the passage if what a ReLU blocks may be left out, else None
    """

    def __init__(
        self, node: Any, shape: tuple[int, ...], pack: Callable[[Passage | None], None]
    ) -> None:
        self.pack = pack
        self._shape = shape
        #: The norm, and the sum that took its output, each with what it put out.
        self._chain: list[tuple[Any, weakref.ref[Tensor] | None]] = [(node, None)]
        self._relu: Any = None
        self._sides: SignMask | None = None
        #: What the ReLU put out, and its version then.
        self._out: tuple[weakref.ref[Tensor], int] | None = None
        self._spoilt = False
        self._number: int = node._sequence_nr()
        self._met = 0

    def meet(self, node: Any, sides: SignMask | None) -> None:
        """An op ran; `sides` is what is kept of its result if it is a ReLU."""
        if node is self._chain[0][0]:
            return
        self._met += 1
        used = [number for number, (one, _) in enumerate(self._chain) if _takes(node, one)]
        if not used:
            return
        last = used == [len(self._chain) - 1] and self._relu is None
        if last and sides is not None:
            self._relu, self._sides = node, sides
        elif last and len(self._chain) == 1 and self._is_sum(node):
            self._chain.append((node, None))
        else:
            self._spoilt = True

    def _is_sum(self, node: Any) -> bool:
        """Whether each element of an op's result is one of the norm's plus something."""
        shapes = [tuple(one.shape) for one in node._input_metadata]
        return op_name(node) == "Add" and shapes == [self._shape]

    def came_out(self, outputs: list[Tensor]) -> None:
        """These are what the last op put out."""
        for number, (node, reference) in enumerate(self._chain):
            if reference is None:
                made = [t for t in outputs if t.grad_fn is node]
                self._spoilt |= not made
                self._chain[number] = (node, weakref.ref(made[0]) if made else None)
        if self._relu is not None and self._out is None:
            made = [t for t in outputs if t.grad_fn is self._relu]
            self._out = (weakref.ref(made[0]), made[0]._version) if made else None

    def is_over(self) -> bool:
        """Whether it is known what becomes of the norm's output."""
        return self._spoilt or self._sides is not None or self._met > _PATIENCE

    def settle(self) -> None:
        """Pack, as what is known allows."""
        if self._spoilt or self._sides is None or not self._is_alone():
            self.pack(None)
        else:
            total = self._chain[1][0] if len(self._chain) > 1 else None
            self.pack(Passage(self._sides, total, self._unchanged()))

    def _unchanged(self) -> Tensor | None:
        """What the ReLU put out, if nobody has changed it since."""
        if self._out is None:
            return None
        found = self._out[0]()
        same = found is not None and found._version == self._out[1]
        return found if same and found is not None and found.grad_fn is self._relu else None

    def spoil(self) -> None:
        """Something happened that cannot be followed."""
        self._spoilt = True

    def _is_alone(self) -> bool:
        """Whether nobody has used, or can still use, what went into the ReLU.

        Nodes are numbered in the order in which they are made. Where one was made that was not
        met (a Function of the user's own on a branch), it may be a user.
        """
        if newest() - self._number != self._met:
            return False
        for node, reference in self._chain:
            t = reference() if reference is not None else None
            if t is not None and t.grad_fn is node:
                return False
        return True


class PendingNorms:
    """The norms that wait."""

    def __init__(self) -> None:
        self._norms: list[PendingNorm] = []

    def add(self, norm: PendingNorm) -> None:
        self._norms.append(norm)

    def __bool__(self) -> bool:
        return bool(self._norms)

    def meet(self, node: Any, sides: SignMask | None) -> None:
        for norm in self._norms:
            norm.meet(node, sides)

    def spoil(self) -> None:
        for norm in self._norms:
            norm.spoil()

    def forget(self) -> None:
        """Let what waits stay as it is."""
        self._norms.clear()

    def came_out(self, outputs: list[Tensor]) -> None:
        for norm in self._norms:
            norm.came_out(outputs)

    def settle(self, *, all_: bool = False) -> None:
        """Pack what waits no longer: as a new op starts, or because the forward pass ends.

        The latest first: of two norms that are added, the earlier may follow from the later.
        """
        over = [norm for norm in self._norms if all_ or norm.is_over()]
        self._norms = [norm for norm in self._norms if norm not in over]
        for norm in reversed(over):
            norm.settle()


def _takes(node: Any, other: Any) -> bool:
    return any(before is other for before, _ in node.next_functions)
