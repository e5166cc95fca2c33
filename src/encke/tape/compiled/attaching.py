"""Letting torch.compile know of a tape, and forget it."""

from __future__ import annotations

import torch

from encke.tape.compiled import internals
from encke.tape.compiled.partition import attached, partition
from encke.tape.tape import Tape


def attach_graphs(tape: Tape, *, compiled: bool) -> None:
    """From now on graphs with parameters of the tape's model keep their tensors through it.

    compiled  whether the model, or a part of it, is run by torch.compile already; what was
              compiled before is then compiled again at its next call
    """
    attached.add(tape)
    tape.detachers.append(lambda: _detach(tape))
    if compiled:
        torch.compiler.reset()
        internals.install(partition)
    elif internals.inductor_is_loaded():
        internals.install(partition)


def _detach(tape: Tape) -> None:
    attached.discard(tape)
    if not attached:
        internals.uninstall(partition)
    for graph in tape.graphs:
        graph.forget()
    if tape.graphs:  # code that asks for the tape must not run on
        tape.graphs.clear()
        torch.compiler.reset()


@internals.at_trace_time
def announce() -> bool:
    """Called while Dynamo traces a model with a tape: its graphs are about to be compiled."""
    internals.install(partition)
    return True


def announce_if_loaded() -> None:
    """Called when a model with a tape runs eagerly: a part of it may be compiled."""
    if internals.inductor_is_loaded() and attached:
        internals.install(partition)
