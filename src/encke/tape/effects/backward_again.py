"""Measuring what the errors of all stored tensors together do to the gradients of a step.

In a measured step, when backward reaches the output of the model, the rest of the graph is
first differentiated once more with a fresh error on top of every stored tensor, of the same
size and kind as the one that is there. Then backward goes on as it would have. The two
gradients of each parameter differ by what such errors do, whatever ways they take through the
network, and through however many calls of the model. Of each gradient only a sample of its
values is held.

No forward pass runs again, so random numbers, buffers and the loss are not touched, and no
gradient is accumulated.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from encke.tape.autograd.dispatch import tensors_in
from encke.tape.autograd.nodes import current_backward, leaf_behind, running_node
from encke.tape.batch_norm.masked import BatchNormMask
from encke.tape.effects.gradient_samples import GradientError, Samples, sample
from encke.tape.effects.probe import Noise
from encke.tape.effects.squares import square
from encke.tape.storage.byte_count import ByteCount
from encke.tape.storage.stored_tensor import StoredTensor

#: The nodes of `encke.head`.
_HEAD = frozenset(["LazyLinearBackward", "LazyStepBackward", "LazyCrossEntropyBackward"])
_LEAST = 0.1  # of a gradient with an error: what it is taken to be without
_DROWNED = 0.3  # of a gradient's square: a difference that may have another cause
#: Share by which the square of a gradient at an output may differ that another depends on.
_NEARLY = 0.3


class BackwardAgain:
    """Measures the gradients of one optimizer step at a time, from `begin` to `finish`.

    reason  why nothing can be measured; empty while it can
    """

    def __init__(self) -> None:
        #: Not the tape's: what a measured step holds beside is not for backward.
        self._ledger = ByteCount()
        self.reason = ""
        self._why_not: Callable[[], str] | None = None
        self.is_on = False
        self._seed = 0
        self._leaves: dict[str, Tensor] = {}
        self._handles: list[Any] = []
        #: Numbered through all calls, since their errors differ.
        self._slots: list[tuple[int, weakref.ref[StoredTensor]]] = []
        self._packed = 0
        #: Samples of the gradients: of the user's own passes, of those with the same values,
        #: and of those with a fresh error.
        self._own, self._same, self._fresh = Samples(), Samples(), Samples()
        #: And of those with what gates leave out of some rows, of which all are so many times
        #: as many.
        self._whole = Samples(), Samples()
        self._times = 1.0
        self._gates = False
        #: Where the gradients of the pass that runs here go; None outside of one.
        self._into: Samples | None = None
        #: The user's backward pass, and the outputs that passes here have come through in it.
        self._pass = -1
        self._through: dict[int, float] = {}
        #: Whether the user's gradients seem to come from elsewhere too, so that they have to be
        #: computed a second time with the same values.
        self.twice = False
        self._valid = False
        #: Parameters whose gradients come from above the place differentiated from, too.
        self._elsewhere: set[int] = set()

    def connect(self, why_not: Callable[[], str]) -> None:
        """`packed` and `forward_ended` will be called.

        why_not  says what stands against running backward twice; empty if nothing does
        """
        self._why_not = why_not

    def begin(
        self, parameters: Mapping[str, Tensor], *, seed: int, gates: bool = False
    ) -> None:
        """Measure the optimizer step that begins.

        gates  whether also what gates leave out
        """
        self.finish()
        if self._why_not is None or self.reason:
            return
        self.reason = self._why_not()
        self._leaves = {
            name: p for name, p in parameters.items() if p.requires_grad and p.is_leaf
        }
        self.reason = self.reason or _why_not(self._leaves)
        if self.reason or not self._leaves:
            return
        self._seed, self.is_on, self._valid = seed, True, False
        self._gates, self._times = gates, 1.0
        self._packed = 0
        for name, parameter in self._leaves.items():
            handle = parameter.register_hook(_Look(self, name))  # type: ignore[no-untyped-call]
            self._handles.append(handle)

    def packed(self, slot: StoredTensor, exact: Tensor) -> None:
        """The tape has packed a tensor."""
        if not self.is_on:
            return
        self._packed += 1
        self._slots.append((self._packed, weakref.ref(slot)))
        if self._gates and isinstance(slot.gate, BatchNormMask):
            slot.gate.hold_left_out(exact, self._ledger, seed=self._seed)

    def forward_ended(self, result: Any) -> None:
        """The model was called, and gave `result`."""
        if not self.is_on or not torch.is_grad_enabled():
            return
        for node in self._starts({t.grad_fn for t in tensors_in(result)}):
            node.register_prehook(_Reached(self))

    def _starts(self, nodes: Iterable[Any]) -> list[Any]:
        """Where to differentiate from: below single numbers, and below a fused head.

        A head computes exactly, and takes much longer than all that is below it.
        """
        found, seen, stack = [], set(), list(nodes)
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            head = node.name() in _HEAD
            leaf = leaf_behind(node)
            if leaf is not None:
                continue
            if not head and any(math.prod(one.shape) > 1 for one in node._input_metadata):
                found.append(node)
                continue
            for one, _ in node.next_functions:
                stack.append(one)
                leaf = _weight_behind(one)
                if head and leaf is not None:
                    self._elsewhere.add(id(leaf))
        return found

    def close(self) -> None:
        """The optimizer has stepped: gradients that come now are not those that it saw."""
        if current_backward() < 0:  # else it steps in backward, parameter by parameter
            for handle in self._handles:
                handle.remove()
            self._handles.clear()

    def finish(self) -> dict[str, GradientError]:
        """What was measured since `begin`, by the parameter's name."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        found = self._compared() if self.is_on and self._valid else {}
        self.is_on = False
        for samples in self._every():
            samples.clear()
        self._slots.clear()
        self._leaves, self._pass = {}, -1
        self._through.clear()
        self._elsewhere.clear()
        return found

    # -- in backward ---------------------------------------------------------------------

    def reached(self, received: tuple[Tensor | None, ...]) -> None:
        """Backward has come to an output of the model, with these gradients."""
        if not self.is_on or torch.is_grad_enabled():
            return
        node = running_node()
        arrived = sum(square(one) for one in received)
        if self._into is not None:
            self._through[id(node)] = arrived
            return
        if current_backward() != self._pass:
            self._pass = current_backward()
            self._through.clear()
        before = self._through.get(id(node))
        if before is not None:
            if abs(before - arrived) > _NEARLY * max(before, arrived):
                self._stop("an output of the model is used in the loss and by the model again")
            return
        edges = [(GradientEdge(node, i), one) for i, one in enumerate(received)]
        present = [(edge, one) for edge, one in edges if one is not None]
        try:
            if self.twice:
                self._run(present, self._same, noisy=False)
            self._run(present, self._fresh, noisy=True)
            if self._gates:
                self._run_with_left_out(present)
        except RuntimeError as error:
            self._stop(f"backward cannot run twice: {str(error).splitlines()[0]:.100}")
        self._valid = self.is_on

    def _run_with_left_out(self, edges: list[tuple[GradientEdge, Tensor]]) -> None:
        """The same with what gates leave out of some rows, where there are gates."""
        gates = [slot.gate for _, slot in self._alive() if isinstance(slot.gate, BatchNormMask)]
        samples = [gate.sample for gate in gates if gate.sample is not None]
        if not samples:
            return
        self._times = max(sample.times for sample in samples)
        try:
            for part in range(max(sample.halves for sample in samples)):
                for sample in samples:
                    sample.part = min(part, sample.halves - 1)
                self._run(edges, self._whole[part], noisy=False)
        finally:
            for sample in samples:
                sample.part = None

    def _run(
        self, edges: list[tuple[GradientEdge, Tensor]], into: Samples, *, noisy: bool
    ) -> None:
        """Differentiate from here on, with a fresh error in all that is stored if `noisy`."""
        with ExitStack() as changed:
            for number, slot in self._alive():
                seed = self._seed + crc32(f"{number} {slot.site}".encode())
                lossy = noisy and not slot.is_exact
                change = Noise(slot, seed).added_to_unpacked if lossy else _as_it_is
                changed.enter_context(slot.looked_at(change))
            self._into = into
            try:
                torch.autograd.grad(
                    [edge for edge, _ in edges],
                    list(self._leaves.values()),
                    [one for _, one in edges],
                    retain_graph=True,
                    allow_unused=True,
                )
            finally:
                self._into = None

    def _alive(self) -> list[tuple[int, StoredTensor]]:
        return [(n, slot) for n, one in self._slots if (slot := one()) is not None]

    def see(self, name: str, gradient: Tensor) -> Tensor | None:
        """A gradient of a parameter; what goes on in its place, if that is to be another."""
        if gradient.layout != torch.strided or not gradient.numel():
            return None
        part = sample(gradient, self._seed)
        if self._into is None:
            self._own.add(name, part, current_backward())
            return None
        self._into.add(name, part, self._pass)
        # Nobody looks at it, so it need not be held until the pass ends.
        return gradient.new_zeros(()).expand(gradient.shape)

    def forget_before(self, name: str) -> None:
        """A gradient was set to zero before the backward pass that runs."""
        for samples in self._every():
            samples.forget_before(name)

    def _every(self) -> Iterator[Samples]:
        yield from (self._own, self._same, self._fresh, *self._whole)

    def _stop(self, reason: str) -> None:
        self.reason, self._valid, self.is_on = reason, False, False

    # -- what was found ------------------------------------------------------------------

    def _compared(self) -> dict[str, GradientError]:
        plain = self._same if self.twice else self._own
        found = {}
        for name in self._fresh.names():
            fresh, other = self._fresh.total(name), plain.total(name)
            own, leaf = self._own.total(name), self._leaves[name]
            if fresh is None or other is None or own is None or id(leaf) in self._elsewhere:
                continue
            times = leaf.numel() / fresh.numel()
            error, whole = square(fresh - other) * times, square(own) * times
            left_out = self._left_out(name, other)
            found[name] = GradientError(
                error,
                max(whole - error, _LEAST * whole),
                None if left_out is None else left_out * times,
            )
        wide = [one for name, one in found.items() if self._leaves[name].ndim > 1]
        drowned = sum(one.error > _DROWNED * one.square for one in wide)
        if not self.twice and 2 * drowned > len(wide):
            # Maybe the loss has terms in the weights themselves: the next time tells.
            self.twice = True
            return {}
        return found

    def _left_out(self, name: str, other: Tensor) -> float | None:
        """What gates leave out of a sample of the gradient, of all rows.

        What it has in common from row to row grows as they do, the rest as their root.
        """
        totals = [samples.total(name) for samples in self._whole]
        changes = [one - other for one in totals if one is not None]
        if not changes:
            return None
        if len(changes) < 2:
            return square(changes[0]) * self._times**2
        single = (square(changes[0]) + square(changes[1])) / 2
        common = min(max(float(changes[0] @ changes[1]), 0.0), single)
        return common * self._times**2 + (single - common) * self._times


def _weight_behind(node: Any) -> Tensor | None:
    """The parameter behind a node, also where a head shares it with an embedding."""
    if node is not None and node.name() == "SharedWeightBackward":
        node = node.next_functions[0][0]
    return leaf_behind(node)


def _as_it_is(values: Tensor) -> Tensor:
    return values


def _why_not(leaves: Mapping[str, Tensor]) -> str:
    """Why these parameters' gradients cannot be computed twice; empty if they can."""
    for name, parameter in leaves.items():
        if type(parameter) not in (Tensor, torch.nn.Parameter):
            return f"{name} is a {type(parameter).__name__}"
        if parameter._backward_hooks:
            return f"{name} has hooks of its own, which would run twice"
    return ""


class _Look:
    """A hook on a parameter, which does not keep alive whoever looks."""

    __slots__ = ("_name", "_watcher")

    def __init__(self, watcher: BackwardAgain, name: str) -> None:
        self._watcher, self._name = weakref.ref(watcher), name

    def __call__(self, gradient: Tensor) -> Tensor | None:
        watcher = self._watcher()
        return None if watcher is None else watcher.see(self._name, gradient)


class _Reached:
    """A hook on an output of the model, likewise."""

    __slots__ = ("_watcher",)

    def __init__(self, watcher: BackwardAgain) -> None:
        self._watcher = weakref.ref(watcher)

    def __call__(self, received: tuple[Tensor | None, ...]) -> None:
        watcher = self._watcher()
        if watcher is not None:
            watcher.reached(received)
