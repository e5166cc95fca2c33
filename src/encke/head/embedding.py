"""The embedding that shares its weight with the head: one gradient of the weight, not two.

Autograd adds the gradients of head and embedding. Both have the size of the whole weight, but
the embedding's has values in a few rows only. Here both lead to a node of their own before the
weight. The embedding leaves its rows there, and the node adds them to the head's gradient when
that has come too. Hooks, optimizers and DDP get the sum, as always.

A sparse gradient would not do: autograd adds it to a dense one in a new tensor.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

#: The node of the last embedding of each weight, for as long as its graph lives.
_embeddings: WeakIdKeyDictionary = WeakIdKeyDictionary()


def shared(weight: Tensor) -> Tensor:
    """What stands for a weight in the graph: a stand-in if an embedding uses it too."""
    found = _embeddings[weight]() if weight in _embeddings else None
    if found is None or not weight.requires_grad:
        return weight
    stand_in: Tensor = found.stand_in
    return stand_in


def embedding(indices: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
    """F.embedding of a weight that a head may share."""
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    stand_in = shared(weight)
    if stand_in is weight:
        stand_in = SharedWeight.apply(weight)  # type: ignore[no-untyped-call]
    result: Tensor = SharedEmbedding.apply(stand_in, [weight], indices, padding)  # type: ignore[no-untyped-call]
    node: Any = result.grad_fn
    node.stand_in = stand_in
    _embeddings[weight] = weakref.ref(node)
    return result


class _Rows(NamedTuple):
    task: int
    places: Tensor
    values: Tensor


class SharedWeight(torch.autograd.Function):
    """Stands before a weight, and adds the rows of embeddings to the gradient of the head."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.shape = weight.shape
        ctx.rows = []
        #: Backward pass and address of a gradient that nobody else holds.
        ctx.own = (-1, 0)
        # Of the weight's shape, without its values: whoever is given it has the weight too.
        return torch.empty_strided(
            weight.shape, (0, 0), dtype=weight.dtype, device=weight.device
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Tensor | None:
        task: int = torch._C._current_graph_task_id()
        rows = [each for each in ctx.rows if each.task == task]
        ctx.rows.clear()
        if not rows:
            return gradient
        if gradient is None:
            gradient = rows[0].values.new_zeros(ctx.shape)
        elif ctx.own != (task, gradient.data_ptr()):
            gradient = gradient.clone()
        for each in rows:
            gradient.index_add_(0, each.places, each.values)
        return gradient


def give_to_shared(node: Any, gradient: Tensor | None) -> None:
    """Note that a fresh gradient of the head, held by nobody else, goes to this node."""
    if gradient is not None and hasattr(node, "own"):
        node.own = (torch._C._current_graph_task_id(), gradient.data_ptr())


class SharedEmbedding(torch.autograd.Function):
    """An embedding that leaves the rows of its gradient at the node of the shared weight."""

    @staticmethod
    def forward(
        ctx: Any, stand_in: Tensor, weight: list[Tensor], indices: Tensor, padding: int
    ) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.padding, ctx.shape = padding, stand_in.shape
        with torch._C.DisableTorchFunction():
            return F.embedding(indices, weight[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        (indices,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            dense = torch.ops.aten.embedding_dense_backward(
                gradient, indices, ctx.shape[0], ctx.padding, False
            )
            return dense, None, None, None
        places, values = indices.reshape(-1), gradient.reshape(-1, ctx.shape[1])
        if ctx.padding >= 0:
            counted = (places != ctx.padding).nonzero().squeeze(1)
            places, values = places[counted], values[counted]
        node = ctx.next_functions[0][0]
        node.rows.append(_Rows(torch._C._current_graph_task_id(), places, values))
        return None, None, None, None
