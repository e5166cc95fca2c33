"""Measuring what the error of a kept tensor does to the gradients of a compiled graph.

In a compiled graph there are no layers to look at one by one. But the backward graph is at
hand as a program of plain ops, so it can be run again with a fresh error in one kept tensor:
the change of every weight's gradient is the effect of that error, wherever it travels. No
theory and no rule about ops is needed, and nothing is left out.

A probe costs one backward pass: the compiled code, called again, where Inductor wrote it, and
op by op elsewhere. In an observed step the places that were never probed are, and a quarter of
the others in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from encke.tape.compiled import internals
from encke.tape.compiled.graphs import CompiledGraph, Kept, behind
from encke.tape.compiled.roles import tensor_of
from encke.tape.effects import Noise, square
from encke.tape.kept import Whole
from encke.tape.protocol import Effect
from encke.tape.slot import Slot
from encke.tape.tape import Tape

_SHARE = 4  # of the places that are probed again in an observed step: one in so many
_FEWEST = 4


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
    probed = graph.probed.setdefault(tape, {})
    due = _due(probed, slots)
    run = _again(program, inputs, sizes)

    def gradients() -> dict[str, Tensor]:
        # Ops that draw random numbers are to draw the same in every run.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(tape.step)
            results = run()
        return {name: results[i].detach() for i, name in graph.parameters.items()}

    graph.probing = True
    try:
        exact = gradients()
        for index in due:
            _report(tape, graph, index, slots[index], exact, gradients)
    finally:
        graph.probing = False
    done = max(probed.values(), default=0) + 1
    probed.update(dict.fromkeys(due, done))


def _again(
    program: fx.GraphModule, inputs: Sequence[Tensor], sizes: Sequence[int]
) -> Callable[[], Sequence[Any]]:
    """What runs the backward graph that has just begun once more, on the same inputs."""
    code = internals.running_code()
    if code is None:
        arguments = _as_traced(program, inputs, sizes)
        return lambda: Replay(program).run(*arguments)
    return lambda: code(_to_overwrite(program, inputs, sizes))


def _observed(program: fx.GraphModule, inputs: Sequence[Tensor]) -> dict[int, Slot]:
    """The slots to be observed behind the handles among `inputs`, by place."""
    found: dict[int, Slot] = {}
    placeholders = [n for n in _placeholders(program) if tensor_of(n) is not None]
    for node, given in zip(placeholders, inputs, strict=True):
        if not node.meta.get("encke_handle"):
            continue
        kept: Kept = behind(given)
        if isinstance(kept.source, Whole) and kept.source.slot.observed:
            found[kept.index] = kept.source.slot
    return found


def _due(probed: dict[int, int], slots: dict[int, Slot]) -> list[int]:
    new = [i for i in slots if i not in probed]
    checked = [i for i, slot in slots.items() if slot.check is not None and i not in new]
    others = sorted(
        (i for i in slots if i in probed and i not in checked),
        key=probed.__getitem__,
    )
    return new + checked + others[: max(_FEWEST, math.ceil(len(slots) / _SHARE)) - len(new)]


def _placeholders(program: fx.GraphModule) -> list[fx.Node]:
    return list(program.graph.find_nodes(op="placeholder"))


def _arguments(
    program: fx.GraphModule, inputs: Sequence[Tensor], sizes: Sequence[int]
) -> Iterator[tuple[fx.Node, Any]]:
    """The program's placeholders, and what each stands for: a tensor or a size."""
    tensors, numbers = iter(inputs), iter(sizes)
    for node in _placeholders(program):
        yield node, next(numbers) if tensor_of(node) is None else next(tensors)


def _as_traced(
    program: fx.GraphModule, inputs: Sequence[Tensor], sizes: Sequence[int]
) -> list[Any]:
    """The inputs, laid out as they were when the program was traced."""
    found: list[Any] = []
    for node, given in _arguments(program, inputs, sizes):
        traced = tensor_of(node)
        found.append(given if traced is None else _laid_out(given, traced.stride()))
    return found


def _laid_out(given: Tensor, stride: tuple[Any, ...]) -> Tensor:
    if given.stride() == stride or not all(isinstance(s, int) for s in stride):
        return given
    return _empty_like(given, stride).copy_(given)


def _to_overwrite(
    program: fx.GraphModule, inputs: Sequence[Tensor], sizes: Sequence[int]
) -> list[Any]:
    """The inputs, with copies of those whose memory compiled code may use for its results."""
    found: list[Any] = []
    for node, given in _arguments(program, inputs, sizes):
        stays = (
            not isinstance(given, Tensor)
            or node.meta.get("encke_handle")
            or internals.is_graph_input(node)
            or internals.is_tangent(node)
        )
        found.append(given if stays else _copy(given))
    return found


def _copy(t: Tensor) -> Tensor:
    """A copy with the same strides; of what is expanded, which nobody overwrites, itself."""
    if any(stride == 0 < size - 1 for size, stride in zip(t.shape, t.stride(), strict=True)):
        return t
    return _empty_like(t, t.stride()).copy_(t)


def _empty_like(t: Tensor, stride: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device)


class Replay(fx.Interpreter):
    """Runs a backward graph op by op, on tensors that handles give."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        from encke.tape.compiled import operators

        if target is operators.tape_observe:
            return torch.zeros((), dtype=torch.float64)
        return super().call_function(target, args, kwargs)


def _report(
    tape: Tape,
    graph: CompiledGraph,
    index: int,
    slot: Slot,
    exact: dict[str, Tensor],
    gradients: Callable[[], dict[str, Tensor]],
) -> None:
    place = graph.places[index]
    changed = Noise(slot, tape.step).during(gradients)
    found = {name: square(g - exact[name]) for name, g in changed.items()}
    del changed
    true: dict[str, float] = {}
    if slot.check is not None:
        kept = slot.check
        slot.noise = lambda _: kept.clone()  # compiled code may overwrite what it is given
        try:
            true = {name: square(g - exact[name]) for name, g in gradients().items()}
        finally:
            slot.noise = None
    # One comparison for a tensor: where its error matters most.
    judged = max(found, key=found.__getitem__, default=None)
    for name, change in found.items():
        tape.report(
            Effect(
                site=place.site,
                consumer=place.site,
                order=place.order,
                error=slot.error,
                values=slot.values,
                parameter=name,
                parameter_square=square(exact[name]),
                probed=change,
                measured=(true[name], 0.0) if true and name == judged else None,
            )
        )
