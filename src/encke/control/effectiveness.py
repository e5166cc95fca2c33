"""Whether a tape has an effect; if it has little or none, why, and what would help.

Nothing of this changes what is stored. It is looked at once, after the first few steps, and
again at the end of `encke run`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from encke.bound import Lossless
from encke.control.budget import Budget
from encke.control.fixed import Fixed
from encke.control.hooks import ModelHooks
from encke.control.optimizers import LosslessFor
from encke.tape import Tape
from encke.tape.autograd.nodes import is_compiled
from encke.tape.observe.records import Record

log = logging.getLogger("encke")

#: Below this many times fewer bytes, the effect counts as little.
LITTLE = 1.5
#: Steps of the optimizer, or without one calls of the model, after which is looked.
_STEPS, _CALLS = 3, 10
_TOY = 1 << 20  # plain bytes below which little effect is only worth a note
_NAMED = 2  # reasons that a message names


def say_after_first_steps(hooks: ModelHooks) -> None:
    """Have a warning logged once, after a few steps, if the tape has little or no effect."""

    def after_step(count: int) -> None:
        if count == _STEPS:
            say(hooks)

    def after_call(count: int) -> None:
        if count == _CALLS and not (hooks.steps and hooks.steps.count):
            say(hooks)

    if hooks.steps is not None:
        hooks.steps.listeners.append(after_step)
    hooks.listeners.append(after_call)


def say(hooks: ModelHooks) -> None:
    """Log a warning if the tape has little or no effect, unless one was logged before."""
    if hooks.warned or hooks.tape.aside:  # then the tape has said so
        return
    none, little = no_effect(hooks), little_effect(hooks)
    if none or little:
        hooks.warned = True
        _, plain = hooks.tape.last_forward
        level = logging.WARNING if none or plain >= _TOY else logging.INFO
        log.log(level, "%s: %s", type(hooks.model).__name__, none or little)


def explain(hooks: ModelHooks) -> str:
    """Why the tape of a model stores little less than autograd would; "" if it does.

    The cause comes first, what would help after the semicolon.
    """
    return no_effect(hooks) or little_effect(hooks)


def no_effect(hooks: ModelHooks) -> str:
    """Why the tape stores nothing; "" if it does."""
    model, tape = hooks.model, hooks.tape
    if model is None:
        return ""
    if tape.aside:
        return tape.aside
    if not any(p.requires_grad for p in model.parameters()):
        return "no parameter requires a gradient, so that backward needs nothing of the model"
    if tape.step and (tape.last_forward[1] or len(tape.records)):
        return ""
    if hooks.was_compiled or any(map(is_compiled, model.modules())):
        return (
            "it was compiled by a backend that does not keep its tensors through a tape; use "
            "torch.compile's default backend, inductor (docs/compile.md)"
        )
    if not tape.step:
        return (
            "neither it nor a part of it was called with gradients on; if the loss is computed "
            "without calling them, write `with tape:` around that"
        )
    return (
        "nothing that it saves for backward came to the tape; saved_tensors_hooks and "
        "checkpointing take it before, and a tape does their work"
    )


def little_effect(hooks: ModelHooks) -> str:
    """Why the tape stores little less than autograd would; "" if it stores much less."""
    tape = hooks.tape
    stored, plain = tape.last_forward
    if is_lossless(tape) or plain >= LITTLE * max(stored, 1) or not plain:
        return ""
    return f"{stored:,} bytes are stored in place of {plain:,}: {reasons(tape.records)}"


def is_lossless(tape: Tape) -> bool:
    """Whether the tape was told to store everything without an error."""
    policy = tape.policy.inner if isinstance(tape.policy, Budget) else tape.policy
    return isinstance(policy, LosslessFor) or (
        isinstance(policy, Fixed) and isinstance(policy.bound, Lossless)
    )


def reasons(records: Iterable[Record]) -> str:
    """What keeps most of the bytes from getting fewer, with its share, and what would help."""
    kept: Counter[str] = Counter()
    total = 0
    for record in records:
        total += record.stored
        if record.how == "exact" and record.stored:
            kept[_reason(record)] += record.stored
    if not kept:
        return "the bounds that the tolerance allows leave many bits; try a larger tolerance"
    named = kept.most_common(_NAMED)
    text = ", ".join(f"{reason}: {count / total:.0%} of the bytes" for reason, count in named)
    return f"{text}; {_remedy(named[0][0])}"


def _reason(record: Record) -> str:
    why = record.why or "kept as it is"
    if why == "small":
        return "tensors too small to be worth packing"
    return why if record.site.op in why else f"{record.site.op} ({why})"


def _remedy(reason: str) -> str:
    if reason.startswith("no rule"):
        return "encke.tape.add_rule gives an op a rule (docs/tape.md)"
    if reason.startswith("tensors too small"):
        return "a larger batch gives Encke more to save"
    return "tape.summary() has it tensor by tensor"
