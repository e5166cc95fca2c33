"""Bytes held for backward over the course of one step: the mountain, and what is left of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from encke.study.measure.holding import Holding
from encke.study.measure.settled import settled
from encke.study.training import Training
from encke.study.zoo import Batch

_MOST = 160  # points of a curve


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One step, looked at after every module and before every node of backward.

    points       share of the step and bytes
    forward_end  share of the step
    peak         most bytes at once
    """

    points: list[list[float]]
    forward_end: float
    peak: int


def trace_plain(training: Training, batch: Batch) -> Trace:
    """A step as plain autograd takes it."""
    with training.fitted.plain():
        return _held(training, batch, plain=True)


def trace_kept(training: Training, batch: Batch) -> Trace:
    """A step in the training's own way."""
    tape = training.fitted.tape
    if tape is None:
        return _held(training, batch, plain=False)
    with settled(tape):
        tape.ledger.reset_peak()
        found = _trace(training, batch, plain=False, held=lambda: tape.ledger.stored)
        return Trace(
            points=found.points, forward_end=found.forward_end, peak=tape.ledger.stored_peak
        )


def _held(training: Training, batch: Batch, *, plain: bool) -> Trace:
    holding = Holding(training.network)
    with holding.within(training.fitted.stretches):
        found = _trace(
            training, batch, plain=plain, held=lambda: holding.bytes, holding=holding
        )
    return Trace(points=found.points, forward_end=found.forward_end, peak=holding.peak)


def _trace(
    training: Training,
    batch: Batch,
    *,
    plain: bool,
    held: Callable[[], int],
    holding: Holding | None = None,
) -> Trace:
    points: list[tuple[float, int]] = []
    begun = time.perf_counter()

    def look(*_: Any) -> None:
        points.append((time.perf_counter() - begun, held()))

    points.append((0.0, 0))
    with ExitStack() as stack:
        hook = register_module_forward_hook(look)
        stack.callback(hook.remove)
        if holding is None:
            loss = training.forward(_copy(batch), plain=plain)
        else:
            loss = _watched(training, _copy(batch), plain, holding)
    look()
    forward_end = points[-1][0]
    before = time.perf_counter()
    _before_every_node(loss, look)
    begun += time.perf_counter() - before  # setting the hooks is no part of the step
    loss.backward()  # type: ignore[no-untyped-call]
    del loss
    training.optimizer.zero_grad(set_to_none=False)
    look()
    whole = points[-1][0]
    return Trace(
        points=_thinned([(t / whole, count) for t, count in points]),
        forward_end=round(forward_end / whole, 5),
        peak=max(count for _, count in points),
    )


def _watched(training: Training, batch: Batch, plain: bool, holding: Holding) -> Tensor:
    """The loss, with all that is saved noted; the way's own hooks go on packing it."""
    fitted = training.fitted
    with ExitStack() as stack:
        if not plain:
            stack.enter_context(fitted.around())
        stack.enter_context(holding.watch())
        output = training.network(*batch.inputs)
        return training.subject.loss(output, batch.target)


def _copy(batch: Batch) -> Batch:
    """Nothing but the graph shall keep the batch alive."""
    inputs = tuple(x.clone() if isinstance(x, Tensor) else x for x in batch.inputs)
    return Batch(inputs, batch.target.clone())


def _before_every_node(loss: Tensor, look: Callable[..., None]) -> None:
    seen: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        node.register_prehook(look)
        stack.extend(after for after, _ in node.next_functions)


def _thinned(points: list[tuple[float, int]]) -> list[list[float]]:
    """At most `_MOST` points: of every stretch, the one with the most bytes."""
    size = -(-len(points) // _MOST)
    first, *between, last = points
    stretches = (between[begin : begin + size] for begin in range(0, len(between), size))
    highest = (max(stretch, key=lambda point: point[1]) for stretch in stretches)
    return [[round(t, 5), count] for t, count in (first, *highest, last)]
