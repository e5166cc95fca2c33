"""One line that makes a training step keep its activations compressed."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from encke.bound import Bound
from encke.control import arguments
from encke.control.adaptive import Adaptive
from encke.control.arguments import Optimizers
from encke.control.budget import Budget, parse_bytes
from encke.control.effectiveness import say_after_first_steps
from encke.control.fixed import Fixed
from encke.control.hooks import ModelHooks, hooks_of
from encke.control.optimizers import OptimizerSteps, unfollow
from encke.control.process_budget import ProcessBudget
from encke.control.reference import Kind
from encke.errors import UnsupportedError
from encke.memory import pool as memory_pool
from encke.tape import Policy, Tape
from encke.tape.compiled import attach_graphs, compiled_module
from encke.tape.observe.telemetry import Target
from encke.tape.peak import StepPeak, trim

logger = logging.getLogger("encke")

#: Of a step's time: what a tape may take unless its user says otherwise.
SLOWDOWN = 0.3


def attach(
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    tolerance: float | None = None,
    budget: int | str | None = None,
    stored_budget: int | str | None = None,
    policy: Policy | None = None,
    reference: Kind | None = None,
    slowdown: float | None = None,
    pool: bool = True,
    head: bool = True,
    log: Target | None = None,
    **options: Any,
) -> Tape:
    """Keep what `model`'s forward saves for backward compressed, from now on.

    tolerance  variance that compression may add to the gradients, as a share of their own
               scale; the controller sets every bound from it. 0.01 unless given
    budget     bytes that the process may take at its peak, as a number or "6GiB": torch,
               weights, gradients and the optimizer's state included. Tensors are stored
               smaller, computed again or moved to disk until it fits; `BudgetError` says what
               would
    stored_budget  bytes that the stored tensors may take, whatever else the process needs
    policy     decides instead of the controller: `encke.Fixed(RangeRelative(0.02))`
    reference  what "their own scale" is: see `encke.control.reference`
    slowdown   time that Encke may take, as a share of a step without it: what saves the fewest
               bytes for its time is left to autograd, and where little would be saved, all
               of it. 0.3 unless given; with a policy or a budget of your own, and with
               `math.inf`, any
    pool       whether torch's CPU blocks come from the pool of `encke.memory` from now on:
               with the C library's heap, storing less hardly lowers the process's peak
    head       whether the loss of a language model is computed without its logits, which are
               made only if somebody looks at them (docs/head.md). It is exact
    log        where every step is recorded: a path, a function, a SummaryWriter (`Tape.log_to`)
    options    of `encke.control.adaptive.Adaptive`

    The model's weights, types and state_dict stay as they are, and so do copies and files made
    of it; `tape.detach()` undoes it. A model whose loss is computed in a method, without
    calling the model itself, is stored through the calls of its parts; where there are none,
    write `with tape:` around what computes the loss.

    An optimizer that compares losses (LBFGS) is disturbed by errors: for it everything is
    stored lossless, and the logger `encke` says so.

    A model that torch.compile runs, before or after, keeps its tensors inside the compiled
    graphs: see docs/compile.md. While it is exported or traced, the tape stands aside.

    >>> import torch
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
    model = compiled_module(arguments.module(model, of="attach"))
    if hooks_of(model) is not None:
        raise UnsupportedError(
            "the model has a tape already; call detach() on that one first, or use it"
        )
    optimizers = arguments.optimizers(optimizer, model)
    given = _given(tolerance=tolerance, reference=reference, **options)
    check_options(policy=policy, budget=budget, **given)
    limit = _one_budget(budget, stored_budget)
    if policy is None:
        given.setdefault("reference", "step" if optimizers else "gradient")
        if limit is not None:  # then every byte counts
            given.setdefault("prefer", "balance")
            given.setdefault("residual", True)
        deciding: Policy = Adaptive(optimizers=optimizers, model=model, **given)
    else:
        deciding = policy
    if stored_budget is not None:
        deciding = Budget(deciding, stored_budget)
    elif budget is not None:
        trim()  # memory that was freed before does not count
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        peak = StepPeak(device if device.type == "cuda" else "cpu")
        deciding = ProcessBudget(deciding, budget, peak=peak)
    limited = policy is None and limit is None
    if slowdown is None and limited:
        slowdown = SLOWDOWN
    if pool:
        _install_pool(model)
    tape = Tape(deciding, model=model, slowdown=arguments.slowdown(slowdown), head=head)
    if isinstance(deciding, Budget):
        deciding.ledger = tape.ledger
    hooks = ModelHooks(model, tape)
    if isinstance(deciding, Adaptive):
        again = deciding.backward_again
        again.connect(hooks.why_not_backward_twice)
        tape.packed.append(again.packed)
        hooks.ended.append(again.forward_ended)
    steps = OptimizerSteps(hooks, keep_lossless=policy is None)
    steps.suit(*optimizers)
    say_after_first_steps(hooks)
    tape.detachers += [hooks.remove, lambda: unfollow(steps)]
    attach_graphs(tape)
    if log is not None:
        tape.log_to(log)
    return tape


def check_options(
    *,
    policy: Policy | None = None,
    budget: int | str | None = None,
    log: Target | None = None,
    **options: Any,
) -> None:
    """Raise `UnsupportedError` if `attach` would not take these options."""
    arguments.known(options, attach, Adaptive.__init__, of="attach")
    for name in ("optimizers", "model"):
        if name in options:
            raise UnsupportedError(
                f"{name} is what attach itself takes: attach(model, optimizer, …)"
            )
    if "tolerance" in options:
        arguments.tolerance(options["tolerance"])
    if budget is not None:
        parse_bytes(budget)
    if policy is None:
        return
    arguments.policy(policy)
    if options:
        raise UnsupportedError(
            f"{', '.join(options)} set the controller, but policy={policy!r:.80} takes its "
            "place; leave the policy out, or set them on it"
        )


def _one_budget(budget: int | str | None, stored: int | str | None) -> int | None:
    """The one that is given, in bytes."""
    if budget is not None and stored is not None:
        raise UnsupportedError(
            f"budget={budget!r} limits the process and stored_budget={stored!r} what is "
            "stored; give one of them"
        )
    given = stored if budget is None else budget
    return None if given is None else parse_bytes(given)


def _install_pool(model: nn.Module) -> None:
    """Install the pool for a model on the host; where it cannot be, say so once."""
    memory = memory_pool()
    if memory.is_installed or any(p.device.type != "cpu" for p in model.parameters()):
        return
    before = memory.reason
    if not memory.install() and memory.reason != before:
        logger.info(
            "tensors come from the C library's heap, which may keep freed memory: %s",
            memory.reason,
        )


def _given(**options: Any) -> dict[str, Any]:
    """The options that are not left to their defaults."""
    return {name: value for name, value in options.items() if value is not None}


def activations(
    bound: Bound, *, codec: str = "auto", dither: bool = True, derive: bool = True
) -> Tape:
    """Keep what is computed inside the `with` block within one bound.

    >>> import torch
    >>> from encke.bound import RangeRelative
    >>> layer = nn.Linear(64, 64)
    >>> with activations(RangeRelative(0.01)) as tape:
    ...     loss = layer(torch.randn(512, 64)).tanh().sum()
    >>> loss.backward()
    """
    return Tape(Fixed(arguments.bound(bound), codec=codec, dither=dither, derive=derive))
