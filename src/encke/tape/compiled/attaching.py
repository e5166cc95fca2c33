"""Letting torch.compile know of a tape, and forget it."""

from __future__ import annotations

import torch

from encke.tape.compiled import internals
from encke.tape.compiled.graphs import attached
from encke.tape.compiled.partition import partition
from encke.tape.tape import Tape


def attach_graphs(tape: Tape) -> None:
    """From now on graphs with parameters of the tape's model keep their tensors through it.

    What was compiled before, of this model or of one like it, is compiled again at its next
    call: code without a tape would serve a model with one.
    """
    attached.add(tape)
    tape.detachers.append(lambda: _detach(tape))
    if internals.dynamo_is_loaded():
        torch.compiler.reset()
        internals.tell_hooks_apart(True)
        internals.install(partition)


def _detach(tape: Tape) -> None:
    attached.discard(tape)
    if not attached:
        internals.uninstall(partition)
        if internals.dynamo_is_loaded():
            internals.tell_hooks_apart(False)
    for graph in tape.graphs:
        graph.forget()
    if tape.graphs:  # code that asks for the tape must not run on
        tape.graphs.clear()
        torch.compiler.reset()


@internals.at_trace_time
def announce() -> bool:
    """Called while Dynamo traces a model with a tape: its graphs are about to be compiled."""
    internals.tell_hooks_apart(True)
    if internals.install(partition):
        # Before this nothing told models with a tape from others.
        for tape in attached:
            if tape.model is not None:
                internals.forget_code_of(tape.model)
    return True


def announce_if_loaded() -> None:
    """Called when a model with a tape runs eagerly: a part of it may be compiled."""
    if internals.dynamo_is_loaded() and attached:
        internals.install(partition)
