"""A policy that has stopped learning, so that measuring changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from encke.tape import GradientEffect, Policy, SavedTensor, StorageDecision, Tape


class Settled:
    """What a policy has come to.

    check    keep every tensor exact beside its packed form, to compare gradients with
    effects  what the errors did, where checked
    """

    def __init__(self, policy: Policy, *, check: bool) -> None:
        self._policy, self._check = policy, check
        self.effects: list[GradientEffect] = []

    def begin(self, step: int) -> None:
        """Nothing changes from step to step."""

    def treat(self, sight: SavedTensor) -> StorageDecision:
        return replace(self._policy.treat(sight), observe=self._check, check=self._check)

    def observe(self, effect: GradientEffect) -> None:
        self.effects.append(effect)

    def state_dict(self) -> dict[str, Any]:
        return self._policy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._policy.load_state_dict(state)


@contextmanager
def settled(tape: Tape, *, check: bool = False) -> Iterator[Settled]:
    """Inside, the tape's policy decides as it would, and learns nothing."""
    learned = tape.policy
    tape.policy = found = Settled(learned, check=check)
    try:
        yield found
    finally:
        tape.policy = learned
