"""Measuring what the errors of kept tensors do to the gradients of a compiled graph.

In an observed step the backward graph is run once more, op by op, before the compiled backward
goes on (`replay`). Beside it runs a trial for every kept tensor: with a fresh error of the size
of its own on top, and where the policy asked for a check, with the exact tensor instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from encke.tape.autograd.nodes import current_backward
from encke.tape.compiled.graphs import CompiledGraph, Kept, behind
from encke.tape.compiled.replay import Replay, Trial
from encke.tape.compiled.roles import tensor_of
from encke.tape.compiled.survey import Survey
from encke.tape.effects.probe import Noise
from encke.tape.policy import GradientEffect
from encke.tape.storage.sources import StoredSource
from encke.tape.storage.stored_tensor import StoredTensor
from encke.tape.tape import Tape


def observe(
    graph: CompiledGraph, tape: Tape, inputs: Sequence[Tensor], sizes: Sequence[int]
) -> None:
    """Report the effects of this step's errors, if this step is to be observed."""
    program = graph.backward
    if program is None:
        return
    slots = _observed(program, inputs)
    if not slots:
        return
    if graph.survey is None:
        graph.survey = Survey(program.graph, graph.parameters)
    trials = {
        index: [Trial(how) for how in _instead(slot, tape.step)]
        for index, slot in slots.items()
    }
    replay = Replay(program, graph.survey, trials)
    # Ops that draw random numbers are not to change what the step itself draws.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(tape.step)
        replay.run(*_arguments(program, inputs, sizes))
    results: Any = program.graph.output_node().args[0]
    squares = {name: replay.squares[results[i]] for i, name in graph.parameters.items()}
    for index, slot in slots.items():
        found, *true = (trial.changes(replay) for trial in trials[index])
        _report(tape, graph, index, slot, squares, found, true[0] if true else {})


def _instead(slot: StoredTensor, step: int) -> list[Callable[[Tensor], Tensor]]:
    """With what values a kept tensor is tried."""
    exact = slot.check
    noise = Noise(slot, step)
    if exact is None:
        return [noise.added_to]
    return [noise.added_to, lambda given: exact.put_into(given.clone())]


def _observed(program: fx.GraphModule, inputs: Sequence[Tensor]) -> dict[int, StoredTensor]:
    """The slots to be observed behind the handles among `inputs`, by place."""
    found: dict[int, StoredTensor] = {}
    placeholders = [n for n in _placeholders(program) if tensor_of(n) is not None]
    for node, given in zip(placeholders, inputs, strict=True):
        if not node.meta.get("encke_handle"):
            continue
        kept: Kept = behind(given)
        if isinstance(kept.source, StoredSource) and kept.source.slot.observed:
            found[kept.index] = kept.source.slot
    return found


def _placeholders(program: fx.GraphModule) -> list[fx.Node]:
    return list(program.graph.find_nodes(op="placeholder"))


def _arguments(
    program: fx.GraphModule, inputs: Sequence[Tensor], sizes: Sequence[int]
) -> list[Any]:
    """What the program's placeholders stand for, laid out as when it was traced."""
    tensors, numbers = iter(inputs), iter(sizes)
    found: list[Any] = []
    for node in _placeholders(program):
        traced = tensor_of(node)
        if traced is None:
            found.append(next(numbers))
        else:
            found.append(_laid_out(next(tensors), traced.stride()))
    return found


def _laid_out(given: Tensor, stride: tuple[Any, ...]) -> Tensor:
    if given.stride() == stride or not all(isinstance(s, int) for s in stride):
        return given
    like = torch.empty_strided(given.shape, stride, dtype=given.dtype, device=given.device)
    return like.copy_(given)


def _report(
    tape: Tape,
    graph: CompiledGraph,
    index: int,
    slot: StoredTensor,
    squares: dict[str, float],
    found: dict[str, float],
    true: dict[str, float],
) -> None:
    place = graph.places[index]
    # One comparison for a tensor: where its error matters most.
    judged = max(found, key=found.__getitem__, default=None)
    times = slot.check.times if slot.check is not None else 1.0
    for name, change in found.items():
        tape.report(
            GradientEffect(
                site=place.site,
                consumer=place.site,
                order=place.order,
                call=tape.step,
                backward=current_backward(),
                error=slot.error,
                values=slot.values,
                parameter=name,
                parameter_square=squares[name],
                probed=change,
                measured=(true.get(name, 0.0) * times, 0.0)
                if true and name == judged
                else None,
            )
        )
