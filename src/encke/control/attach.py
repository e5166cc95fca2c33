"""One line that makes a training step keep its activations compressed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from encke.bound import Bound
from encke.control.adaptive import Adaptive
from encke.control.budget import Budget
from encke.control.fixed import Fixed
from encke.control.reference import Kind
from encke.errors import UnsupportedError
from encke.tape import Policy, Tape
from encke.tape.compiled import announce, announce_if_loaded, attach_graphs, compiled_module
from encke.tape.graph import is_exported, is_traced
from encke.tape.telemetry import Target

Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None


def attach(
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    tolerance: float = 0.01,
    budget: int | str | None = None,
    policy: Policy | None = None,
    reference: Kind | None = None,
    log: Target | None = None,
    **options: Any,
) -> Tape:
    """Keep what `model`'s forward saves for backward compressed, from now on.

    tolerance  variance that compression may add to the gradients, as a share of their own
               scale; the controller sets every bound from it
    budget     bytes that the kept tensors may take, as a number or "6GiB"
    policy     decides instead of the controller: `encke.Fixed(RangeRelative(0.02))`
    reference  what "their own scale" is: see `encke.control.reference`
    log        where every step is recorded: a path, a function, a SummaryWriter (`Tape.log_to`)
    options    of `encke.control.adaptive.Adaptive`

    The model's weights, types and state_dict stay as they are; `tape.detach()` undoes it.
    A model that torch.compile runs, before or after, keeps its tensors inside the compiled
    graphs: see docs/compile.md. While it is exported or traced, the tape stands aside.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    >>> tape = attach(model)
    >>> loss = model(torch.randn(256, 64)).square().mean()
    >>> tape.stored_bytes < tape.plain_bytes / 4
    True
    >>> loss.backward()
    >>> tape.stored_bytes
    0
    >>> tape.detach()
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedError(
            f"attach takes a torch.nn.Module, this is {type(model).__name__}; for a part of a "
            "computation without a module, use `with encke.activations(bound):`"
        )
    model = compiled_module(model)
    if _attached(model) is not None:
        raise UnsupportedError(
            "the model has a tape already; call detach() on that one first, or use it"
        )
    if policy is None:
        optimizers = _list(optimizer)
        policy = Adaptive(
            tolerance,
            optimizers=optimizers,
            model=model,
            reference=reference or ("step" if optimizers else "gradient"),
            **options,
        )
    elif options or reference:
        raise UnsupportedError(
            f"{', '.join([*options, *(['reference'] if reference else [])])} belong to the "
            "controller, but a policy of its own was given; set them on the policy"
        )
    if budget is not None:
        policy = Budget(policy, budget)
    tape = Tape(policy, model=model)
    if isinstance(policy, Budget):
        policy.ledger = tape.ledger
    hooks = [
        model.register_forward_pre_hook(_Enter(tape)),
        model.register_forward_hook(_Leave(tape), always_call=True),
    ]
    tape.detachers.extend(hook.remove for hook in hooks)
    attach_graphs(tape)
    if log is not None:
        tape.log_to(log)
    return tape


def activations(
    bound: Bound, *, codec: str = "auto", dither: bool = True, derive: bool = True
) -> Tape:
    """Keep what is computed inside the `with` block within one bound.

    >>> from encke.bound import RangeRelative
    >>> layer = nn.Linear(64, 64)
    >>> with activations(RangeRelative(0.01)) as tape:
    ...     loss = layer(torch.randn(512, 64)).tanh().sum()
    >>> loss.backward()
    """
    return Tape(Fixed(bound, codec=codec, dither=dither, derive=derive))


def _list(optimizer: Optimizers) -> list[torch.optim.Optimizer]:
    if optimizer is None:
        return []
    found = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    for one in found:
        if not isinstance(one, torch.optim.Optimizer):
            raise UnsupportedError(
                f"optimizer holds {type(one).__name__}, allowed are torch.optim.Optimizer, "
                "several of them, or None"
            )
    return found


def _attached(model: nn.Module) -> Tape | None:
    for hook in model._forward_pre_hooks.values():
        if isinstance(hook, _Enter) and hook.tape is not None:
            return hook.tape
    return None


class _Hook:
    """A hook of the model's root. A copy of the model gets one that does nothing.

    So `copy.deepcopy(model)`, an averaged model or a pickled one carries no tape, and the
    tape is not copied with it.
    """

    def __init__(self, tape: Tape | None = None) -> None:
        self.tape = tape

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Hook:
        return type(self)()

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return type(self), ()


class _Enter(_Hook):
    def __call__(self, _module: nn.Module, _args: Any) -> None:
        if self.tape is None:
            return
        if not is_traced():
            announce_if_loaded()
            self.tape.begin_call(sys._getframe(1))
        elif torch.compiler.is_compiling() and not is_exported():
            announce()


class _Leave(_Hook):
    def __call__(self, _module: nn.Module, _args: Any, result: Any) -> None:
        if self.tape is not None and not is_traced():
            self.tape.end_call(result)
