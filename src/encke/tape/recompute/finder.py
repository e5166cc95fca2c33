"""Computing a tensor from other kept ones, instead of keeping all of them.

`value_of(node, shape)` follows the graph from the op that made a tensor back to something
that is kept with its values: ReLU's output comes from its exact mask and its input, a norm's
from its input and its exact statistics (`norms`), a product or an activation from its operands
(`elementwise`), a reshaped copy from the original. What is found is a `TensorSource`; None
means that the tensor has to be stored.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from encke.tape.autograd.nodes import ACCUMULATE, kept_for, leaf_behind, notes, op_name
from encke.tape.storage.sources import (
    CombinedSource,
    RecomputedSource,
    StoredSource,
    TensorSource,
    TwoValueMask,
    Unstored,
    ViewSource,
)
from encke.tape.storage.stored_tensor import StoredTensor

Recipe = Callable[["RecomputeFinder", Any, tuple[int, ...]], TensorSource | None]
_recipes: dict[str, Recipe] = {}
_DEEPEST = 8
#: The most ops and packed tensors that a tensor may be computed from.
_MOST_STEPS, _MOST_SLOTS = 12, 3
_OUTPUT = "encke.output"


def recipe(*ops: str) -> Callable[[Recipe], Recipe]:
    """Register how the output of `ops` follows from what those ops keep."""

    def register(function: Recipe) -> Recipe:
        for op in ops:
            _recipes[op] = function
        return function

    return register


def remember_output(t: Tensor, source: TensorSource) -> None:
    """Let what is computed from `t` find its values, which `source` keeps."""
    if t.grad_fn is not None and isinstance(source, StoredSource | ViewSource):
        slot, *geometry = source.again()
        known = notes(t.grad_fn).setdefault(_OUTPUT, {})
        known[t.output_nr] = type(source), weakref.ref(slot), geometry


class RecomputeFinder:
    """Looks for a way to compute an op's output.

    arithmetic  whether norms and functions may be evaluated again, exact but for rounding
    recompute   whether products (linear layers, convolutions) may be run again
    """

    def __init__(self, *, arithmetic: bool = True, recompute: bool = False) -> None:
        self.arithmetic, self.recompute = arithmetic, recompute
        self._depth = 0

    def value_of(self, node: Any, shape: tuple[int, ...]) -> TensorSource | None:
        """What the first output of `node` can be computed from."""
        if node is None or self._depth >= _DEEPEST or not node.name()[-1].isdigit():
            return None  # a name without a number is of a function written in Python
        found = _recipes.get(op_name(node))
        if found is None:
            return None
        self._depth += 1
        try:
            source = found(self, node, shape)
        finally:
            self._depth -= 1
        return source if source is not None and _is_cheap(source) else None

    def input_of(
        self, node: Any, edge: int, shape: tuple[int, ...] | None = None
    ) -> TensorSource | None:
        """The values that reached `node` along one of its edges.

        shape  of them, where the edge does not tell
        """
        maker, number = node.next_functions[edge]
        if maker is None:
            return None
        if maker.name() == ACCUMULATE:
            return Unstored(maker.variable, f"an operand of {op_name(node)}")
        found = self._output(maker, number)
        if found is not None or number != 0:
            return found
        return self.value_of(maker, shape or tuple(maker._input_metadata[0].shape))

    @staticmethod
    def _output(node: Any, number: int) -> TensorSource | None:
        """What some op keeps of an output of `node`."""
        known = notes(node).get(_OUTPUT, {}).get(number)
        if known is None:
            return None
        kind, reference, geometry = known
        slot: StoredTensor | None = reference()
        if slot is None or slot.waits or (slot.gate is not None and not slot.gate.complete):
            return None
        source: TensorSource = kind(slot, *geometry)
        return source

    def kept(self, node: Any, role: str) -> TensorSource | None:
        """What the tape keeps of a role, if that gives values."""
        source = self.source(node, role)
        if isinstance(source, StoredSource | ViewSource):
            # A source counts who will ask for its slot: each consumer has its own.
            return type(source)(*source.again())
        return (
            source
            if isinstance(source, RecomputedSource | CombinedSource | TwoValueMask)
            else None
        )

    @staticmethod
    def source(node: Any, role: str) -> TensorSource | None:
        return getattr(kept_for(node, role), "source", None)


def _is_cheap(source: TensorSource) -> bool:
    packed = [slot for slot in source.slots() if slot.kind != "exact"]
    return source.steps <= _MOST_STEPS and len(packed) <= _MOST_SLOTS


@recipe(
    "ScaledDotProductFlashAttentionForCpu",
    "ScaledDotProductFlashAttention",
    "ScaledDotProductEfficientAttention",
    "ScaledDotProductCudnnAttention",
)
def _attention(d: RecomputeFinder, node: Any, _shape: tuple[int, ...]) -> TensorSource | None:
    return d.kept(node, "output") or d.kept(node, "out")


@recipe("View", "UnsafeView", "ReshapeAlias")
def _view(d: RecomputeFinder, node: Any, shape: tuple[int, ...]) -> TensorSource | None:
    before = getattr(node, "_saved_self_sym_sizes", None)
    if before is None:
        return None
    parent = d.input_of(node, 0, tuple(before))
    return parent and RecomputedSource(parent, lambda x: x.reshape(shape), parent.how)


@recipe("Transpose")
def _transpose(d: RecomputeFinder, node: Any, shape: tuple[int, ...]) -> TensorSource | None:
    one, other = (_signed(i, len(shape)) for i in (node._saved_dim0, node._saved_dim1))
    before = list(shape)
    before[one], before[other] = before[other], before[one]
    parent = d.input_of(node, 0, tuple(before))
    return parent and RecomputedSource(parent, lambda x: x.transpose(one, other), parent.how)


@recipe("Permute")
def _permute(d: RecomputeFinder, node: Any, shape: tuple[int, ...]) -> TensorSource | None:
    order = tuple(_signed(i, len(shape)) for i in node._saved_dims)
    before = [0] * len(shape)
    for place, dimension in enumerate(order):
        before[dimension] = shape[place]
    parent = d.input_of(node, 0, tuple(before))
    return parent and RecomputedSource(parent, lambda x: x.permute(order), parent.how)


@recipe("T")
def _t(d: RecomputeFinder, node: Any, shape: tuple[int, ...]) -> TensorSource | None:
    parent = d.input_of(node, 0, shape[::-1])
    return parent and RecomputedSource(parent, lambda x: x.t(), parent.how)


@recipe("Clone", "Contiguous", "Alias")
def _same(d: RecomputeFinder, node: Any, shape: tuple[int, ...]) -> TensorSource | None:
    return d.input_of(node, 0, shape)


@recipe("ToCopy")
def _cast(d: RecomputeFinder, node: Any, shape: tuple[int, ...]) -> TensorSource | None:
    about = node._input_metadata[0]
    dtype, device = about.dtype, about.device
    parent = d.input_of(node, 0, shape)
    return parent and RecomputedSource(parent, lambda x: x.to(device, dtype), parent.how)


def _signed(dimension: int, count: int) -> int:
    """A dimension as torch's nodes store it: negative ones as unsigned 64-bit numbers."""
    if dimension >= 1 << 63:
        dimension -= 1 << 64
    return dimension % count


@recipe("Addmm")
def _linear(d: RecomputeFinder, node: Any, _shape: tuple[int, ...]) -> TensorSource | None:
    if not d.recompute or node._saved_alpha != 1 or node._saved_beta != 1:
        return None
    source = d.kept(node, "mat1")
    bias = leaf_behind(node.next_functions[0][0])
    weight = node._saved_mat2 if source is not None and bias is not None else None
    if source is None or bias is None or weight is None:
        return None
    product = weight.detach(), bias.detach()
    return RecomputedSource(
        source, lambda x: torch.addmm(product[1], x, product[0]), "linear again"
    )


@recipe("Convolution")
def _convolution(d: RecomputeFinder, node: Any, _shape: tuple[int, ...]) -> TensorSource | None:
    if not d.recompute:
        return None
    source = d.kept(node, "input")
    weight = node._saved_weight
    has_bias = node._saved_bias_sym_sizes_opt not in (None, (0,), [0])
    bias = leaf_behind(node.next_functions[2][0]) if has_bias else None
    if source is None or (has_bias and bias is None):
        return None
    product = weight.detach(), None if bias is None else bias.detach()
    geometry = (
        node._saved_stride,
        node._saved_padding,
        node._saved_dilation,
        node._saved_transposed,
        node._saved_output_padding,
        node._saved_groups,
    )

    def compute(x: Tensor) -> Tensor:
        return torch.convolution(x, *product, *(_signed_all(g) for g in geometry))

    return RecomputedSource(source, compute, "convolution again")


def _signed_all(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
