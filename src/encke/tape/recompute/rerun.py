"""Running an op again in backward, in place of storing what it gave.

oneDNN's LSTM layer saves a workspace of some sixteen floats for each value of its output. Its
layout is known to oneDNN alone, and parts of it are never written, so it cannot be packed
within a bound. It follows from the layer's inputs and weights: the layer is run again, once
for all that backward asks for.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from encke.tape.autograd.nodes import has_hooks, kept_for, notes, raw_saved, saved_tensor
from encke.tape.storage.sources import (
    CombinedSource,
    RecomputedSource,
    StoredSource,
    TensorSource,
    Unstored,
    ViewSource,
)
from encke.tape.storage.stored_tensor import StoredTensor

_KEY = "encke.rerun"
_TENSORS = ("input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_")
_OPTIONS = (
    "reverse",
    "batch_sizes",
    "mode",
    "hidden_size",
    "num_layers",
    "has_biases",
    "bidirectional",
    "batch_first",
    "train",
)


class LstmLayer:
    """An LSTM layer that can be run again; its results stay until each was asked for once."""

    def __init__(self, inputs: list[TensorSource], options: list[Any]) -> None:
        self._inputs, self._options = inputs, options
        self._results: tuple[Tensor, ...] = ()
        #: Results that backward asks for, and those that it has not asked for yet.
        self._wanted: set[int] = set()
        self._open: set[int] = set()

    def will_be_asked(self, number: int) -> None:
        self._wanted.add(number)

    def result(self, number: int) -> Tensor:
        if number not in self._open:
            tensors = [source.get() for source in self._inputs]
            with torch.enable_grad():  # without, it leaves the workspace out
                self._results = torch.mkldnn_rnn_layer(*tensors, *self._options)  # type: ignore[arg-type]
            self._open = set(self._wanted)
        found = self._results[number]
        self._open.discard(number)
        if not self._open:
            self._results = ()
        return found

    def slots(self) -> Iterator[StoredTensor]:
        found = {id(slot): slot for source in self._inputs for slot in source.slots()}
        return iter(found.values())


class Again(TensorSource):
    """One result of an op that runs again."""

    __slots__ = ("_layer", "_number")
    how = "the layer run again"

    def __init__(self, layer: LstmLayer, number: int) -> None:
        self._layer, self._number = layer, number
        layer.will_be_asked(number)

    def get(self) -> Tensor:
        return self._layer.result(self._number)

    def slots(self) -> Iterator[StoredTensor]:
        return self._layer.slots()


def result_of(node: Any, role: str) -> TensorSource | None:
    """A source for the result that `node` saved; None if an input is out of reach."""
    known = notes(node).get(_KEY)
    layer = None if known is None else known()
    if layer is None:
        inputs = [_input(node, name) for name in _TENSORS]
        found = [one for one in inputs if one is not None]
        if len(found) < len(inputs) or not any(True for one in found for _ in one.slots()):
            return None
        options = [getattr(node, f"_saved_{name}") for name in _OPTIONS]
        options[1] = list(options[1])
        layer = LstmLayer(found, options)
        notes(node)[_KEY] = weakref.ref(layer)
    return Again(layer, int(role.removeprefix("result")))


def _input(node: Any, role: str) -> TensorSource | None:
    """What `node` saved of an input, kept by the tape or left alone by it."""
    if not has_hooks(raw_saved(node, role)):
        t = saved_tensor(node, role)
        return None if t is None else Unstored(t, f"an LSTM's {role}")
    source = getattr(kept_for(node, role), "source", None)
    if isinstance(source, StoredSource | ViewSource):
        return type(source)(*source.again())
    return source if isinstance(source, RecomputedSource | CombinedSource) else None
