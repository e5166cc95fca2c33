"""What the optimizers of models with a tape do: how often they step, and how.

An optimizer that compares losses (LBFGS with its line search) calls a closure several times
in a step and reads the curvature of the loss off the differences between the calls. Errors
that differ from call to call disturb it, however small they are on average: while such an
optimizer steps, nothing is stored with an error.

Optimizers are seen through torch's global step hooks, so it does not matter whether `attach`
was given the optimizer, nor whether another one takes over later (Adam first, then LBFGS).
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from encke.control.arguments import trains
from encke.control.budget import Budget
from encke.control.hooks import ModelHooks
from encke.tape.policy import LOSSLESS, GradientEffect, Policy, SavedTensor, StorageDecision

log = logging.getLogger("encke")


def compares_losses(optimizer: Optimizer) -> bool:
    """Whether an optimizer calls a closure to compare losses: its step cannot do without.

    >>> parameters = [torch.zeros(2, requires_grad=True)]
    >>> compares_losses(torch.optim.LBFGS(parameters))
    True
    >>> compares_losses(torch.optim.Adam(parameters))
    False
    """
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, Optimizer):  # a wrapper, as accelerate's
        return compares_losses(inner)
    if isinstance(optimizer, torch.optim.LBFGS):
        return True
    try:
        given = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    except (TypeError, ValueError):
        return False
    return any(
        parameter.default is inspect.Parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in given[:1]
    )


class LosslessFor:
    """Stores everything without an error, in the place of `inner`, whose state it keeps."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner

    def begin(self, step: int) -> None:
        """Nothing to learn."""

    def treat(self, sight: SavedTensor) -> StorageDecision:
        return LOSSLESS

    def observe(self, effect: GradientEffect) -> None:
        """Nothing to learn."""

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


class OptimizerSteps:
    """Follows the optimizers that train one model, while it has its tape.

    keep_lossless  whether the policy makes way for optimizers that compare losses
    """

    def __init__(self, hooks: ModelHooks, *, keep_lossless: bool = True) -> None:
        self._hooks = hooks
        hooks.steps = self
        self._keep_lossless = keep_lossless
        self._counts: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._trains: weakref.WeakKeyDictionary[Optimizer, tuple[object, bool]] = (
            weakref.WeakKeyDictionary()
        )
        self._said = False
        self._most = 0
        self._entered = 0
        #: Called with the number of steps after each.
        self.listeners: list[Callable[[int], None]] = []
        _follow(self)

    @property
    def count(self) -> int:
        """Steps taken so far: of the optimizer that took the most."""
        return self._most

    # -- before and after a step ---------------------------------------------------------

    def before(self, optimizer: Optimizer) -> None:
        if self._is_ours(optimizer):
            self.suit(optimizer)

    def after(self, optimizer: Optimizer) -> None:
        if not self._is_ours(optimizer):
            return
        told = getattr(self._hooks.tape.policy, "optimizer_stepped", None)
        if told is not None:
            told()
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        if count <= self._most:
            return  # another one that steps beside
        self._most = count
        entered = self._hooks.tape.step
        if entered == self._entered:
            self._hooks.watch_parts()  # trained, but not through the model's own call
        self._entered = entered
        for listener in self.listeners:
            listener(count)

    def suit(self, *optimizers: Optimizer) -> None:
        """Store without errors if one of `optimizers` compares losses; say so once."""
        named = [type(one).__name__ for one in optimizers if compares_losses(one)]
        if named:
            self._say(named[0])
        if not self._keep_lossless:
            return
        tape = self._hooks.tape
        outer = tape.policy if isinstance(tape.policy, Budget) else None
        policy = tape.policy if outer is None else outer.inner
        if named and not isinstance(policy, LosslessFor):
            policy = LosslessFor(policy)
        elif not named and isinstance(policy, LosslessFor):
            policy = policy.inner
        if outer is None:
            tape.policy = policy
        else:
            outer.inner = policy

    def _say(self, name: str) -> None:
        if self._said:
            return
        self._said = True
        if self._keep_lossless:
            follows = (
                "activations are stored lossless while it steps, which saves little memory; "
                "Encke saves more with an optimizer that does not (SGD, Adam)"
            )
        else:
            follows = "leave the policy out, and activations are stored lossless for it"
        log.warning(
            "%s compares the losses of several forward passes in a step, which errors in "
            "activations disturb: %s",
            name,
            follows,
        )

    def _is_ours(self, optimizer: Optimizer) -> bool:
        model = self._hooks.model
        first = None if model is None else next(model.parameters(), None)
        if model is None or first is None:
            return False
        key = (id(first), sum(len(group["params"]) for group in optimizer.param_groups))
        known = self._trains.get(optimizer)
        if known is None or known[0] != key:
            known = self._trains[optimizer] = key, trains(optimizer, model)
        return known[1]


# -- torch's hooks, while there is a model with a tape ---------------------------------------

_followers: weakref.WeakSet[OptimizerSteps] = weakref.WeakSet()
_registered: list[Callable[[], None]] = []


def _follow(steps: OptimizerSteps) -> None:
    _followers.add(steps)
    if not _registered:
        _registered.append(register_optimizer_step_pre_hook(_before).remove)
        _registered.append(register_optimizer_step_post_hook(_after).remove)


def unfollow(steps: OptimizerSteps) -> None:
    """The model of `steps` has no tape any more."""
    _followers.discard(steps)
    if not _followers:
        while _registered:
            _registered.pop()()


def _before(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return  # a step that is compiled is left as it is
    for steps in list(_followers):
        steps.before(optimizer)


def _after(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    for steps in list(_followers):
        steps.after(optimizer)
