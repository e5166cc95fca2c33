"""Where in a step memory is highest, and which ops need not be stored small for that.

At the end of a forward pass every tensor is held, but the gradients of the weights are not yet
made, and the working memory of the last ops is often small. The highest point of the step, its
summit, then lies later in backward, when the tensors of the last ops are gone. Storing those
small takes time and lowers nothing. So the live bytes of the pool are followed through an
ordinary step, and from some op on, the tail, everything is left to autograd: as many ops as the
summit allows. Where the tail turns out to make the summit, it is shortened.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

#: Of the distance to the summit: what the tail may use, since steps vary.
_SHARE = 0.9
_LEAST = 8  # ops: a shorter tail is not worth it
#: Ordinary passes before the tail is chosen: bounds have settled by then.
_FIRST = 2


class StepSummit:
    """Follows the live bytes of forward and backward passes.

    high_mark  gives the most live bytes since it was called last; 0 where nobody knows
    tail       place of the first op in forward that is left to autograd; infinite for none
    tail_bytes that autograd holds for the ops from there on
    """

    def __init__(self, high_mark: Callable[[], int]) -> None:
        self._high_mark = high_mark
        self.is_on = True
        self.tail: float = math.inf
        self.tail_bytes = 0
        self._passes = 0
        self._clear()

    def _clear(self) -> None:
        #: By op, in forward order: its place, live bytes at their highest since the op before,
        #: and bytes stored and plain then.
        self._forward: list[tuple[int, int, int, int]] = []
        #: Place of each op that asked for a tensor in backward, and the same.
        self._backward: list[tuple[int, int]] = []
        #: The most live bytes at the end of forward; None until then.
        self._end: int | None = None

    def begin(self, *, ordinary: bool) -> bool:
        """A forward pass begins: learn from the one before, if that was `ordinary`.

        Whether the tail has changed.
        """
        if not self.is_on:
            return False
        before = self.tail
        rest = self._high_mark()
        if ordinary and self._backward and self._end is not None:
            self._passes += 1
            self._judge(rest)
        self._clear()
        return self.tail != before

    def forward(self, order: int, *, stored: int, plain: int) -> None:
        """The op at this place was seen."""
        if self.is_on:
            self._forward.append((order, self._high_mark(), stored, plain))

    def end_forward(self) -> None:
        if self.is_on:
            self._end = self._high_mark()

    def backward(self, order: int) -> None:
        """The op at this place asks for a tensor."""
        if self.is_on:
            self._backward.append((order, self._high_mark()))

    @property
    def has_tail(self) -> bool:
        return self.tail < math.inf

    def _judge(self, rest: int) -> None:
        if not rest:
            self.is_on = False  # no pool, no tail
            return
        if self.has_tail:
            inside = max(self._end or 0, self._backward[0][1])
            outside = [high for _, high, _, _ in self._forward]
            outside += [high for _, high in self._backward[1:]] + [rest]
            if inside > max(outside):
                self._shorten()
        elif self._passes == _FIRST:
            self._choose(rest)

    def _shorten(self) -> None:
        last = self._last
        place = int(self.tail + max(_LEAST, (last - self.tail) // 3))
        if place > last - _LEAST:
            self.tail, self.tail_bytes, self.is_on = math.inf, 0, False
            return
        self._set(place)

    def _choose(self, rest: int) -> None:
        """The earliest op from which on plain autograd stays below the summit."""
        places = [order for order, _, _, _ in self._forward]
        self._last = places[-1] if places else 0
        stored = [s for _, _, s, _ in self._forward]
        self._plain = {order: plain for order, _, _, plain in self._forward}
        extra = [plain - s for (_, _, _, plain), s in zip(self._forward, stored, strict=True)]
        high = self._highest()
        summit = max(*high, rest) if high else rest

        def fits(first: int) -> bool:
            more = (extra[i] - extra[first] for i in range(first, len(extra)))
            room = (_SHARE * (summit - high[i]) for i in range(first, len(extra)))
            return all(a <= b for a, b in zip(more, room, strict=True))

        low, above = 0, len(places)
        while low < above:
            middle = (low + above) // 2
            if fits(middle):
                above = middle
            else:
                low = middle + 1
        if low < len(places) - _LEAST:
            self._set(places[low])
        else:
            self.is_on = False

    def _set(self, place: int) -> None:
        self.tail = place
        before = max((b for order, b in self._plain.items() if order <= place), default=0)
        self.tail_bytes = max(self._plain.values(), default=0) - before

    def _highest(self) -> list[int]:
        """By op in forward order: the most live bytes while it ran, in forward or backward."""
        high = [h for _, h, _, _ in self._forward]
        if not high:
            return high
        index = {order: i for i, (order, _, _, _) in enumerate(self._forward)}
        high[-1] = max(high[-1], self._end or 0)
        running = len(high) - 1  # what ran until the first tensor was asked for
        for order, mark in self._backward:
            place = index.get(order, running)
            for i in range(min(place, running), max(place, running) + 1):
                high[i] = max(high[i], mark)
            running = place
        return high

    def state_dict(self) -> dict[str, Any]:
        tail = int(self.tail) if self.has_tail else None
        return {"tail": tail, "bytes": self.tail_bytes, "on": self.is_on}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tail = state.get("tail")
        self.tail = math.inf if tail is None else tail
        self.tail_bytes, self.is_on = state.get("bytes", 0), state.get("on", True)
        self._last, self._plain = (tail or 0), {}
        self._passes = 0 if self.is_on and tail is None else _FIRST + 1
