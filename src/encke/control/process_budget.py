"""Keeping the peak of the whole process below a limit.

The process needs more than what the tape stores: torch itself, weights, gradients, the
optimizer's state, the tensors that an op works on. How much that is shows in every step as the
process's highest memory less the bytes stored then. What is left of the limit is the room for
stored tensors, and `Budget` fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from encke.control.budget import Budget, BudgetError
from encke.tape.observe.records import Record
from encke.tape.peak import StepPeak
from encke.tape.policy import Policy

_NEAR = 0.005  # of the limit: a smaller change of the room does not make another plan
_FORGET = 0.02  # of the distance to what was seen last, each step


class ProcessBudget(Budget):
    """Keeps the highest memory of the process below `limit`; `inner` sets the bounds.

    peak   gives the most memory that the process had since it was asked last
    rest   bytes that the process needs beside what is stored
    """

    def __init__(
        self,
        inner: Policy,
        limit: int | str,
        *,
        offload: bool = True,
        peak: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(inner, limit, offload=offload)
        self.whole = self.limit
        self.rest = 0
        self._peak = StepPeak() if peak is None else peak
        self._stored_now = 0

    def begin(self, step: int) -> None:
        self._look(self._peak())
        super().begin(step)

    def kept(self, records: Iterable[Record], stored: int) -> None:
        self._stored_now = max(self._stored_now, stored)
        super().kept(records, stored)

    def _look(self, highest: int) -> None:
        """Learn from the step that ended."""
        stored, self._stored_now = self._stored_now, 0
        if not stored:
            return
        rest = highest - stored
        if rest > self.rest:
            self.rest = rest
        else:
            self.rest -= int(_FORGET * (self.rest - rest))
        room = self.whole - self.rest
        if room <= 0:
            raise BudgetError(
                f"budget is {self.whole:,} bytes for the process, which needs {self.rest:,} "
                "beside the stored tensors (torch itself, weights, gradients, optimizer state, "
                f"tensors at work). Possible is budget={self.rest + stored} or more, or a "
                "smaller batch"
            )
        if abs(room - self.limit) > _NEAR * self.whole or room < self.limit:
            self.limit = room
            self._due |= bool(self.plan)

    def _told(self, reached: int) -> tuple[str, int]:
        text = (
            f"budget is {self.whole:,} bytes for the process, of which {self.rest:,} are "
            "needed beside the stored tensors"
        )
        return text, reached + self.rest

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"rest": self.rest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rest = state.get("rest", 0)
        if self.rest:
            self.limit = max(1, self.whole - self.rest)
