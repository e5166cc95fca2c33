"""The gradient of logits that were not made: also not made, unless somebody looks at it.

The loss hands it to the nodes of the lazy tensors before it, which pass it on to the node of
the linear layer. That computes the gradients of hidden states, weight and bias from it block
by block. So the graph has the nodes that it would have with logits: hooks, `retain_grad` and
`torch.autograd.grad` find the gradient where they look for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from encke.head.blocks import BLOCK_BYTES, Buffers, Projection, spans
from encke.head.criterion import RowGradient
from encke.head.forms import Form
from encke.head.passes import Gradients, backward_pass


@dataclass(frozen=True, eq=False)
class Part:
    """The gradient that one loss gives.

    form      what the loss was computed from
    gradient  one row for each row of the form
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    dtype: torch.dtype
    form: Form
    gradient: RowGradient

    @property
    def projection(self) -> Projection:
        return projection(self.weight, self.bias, self.dtype, self.form)

    def states(self) -> Tensor:
        return states_of(self.hidden, self.form)

    def of_inputs(self, needs: tuple[bool, bool, bool]) -> Gradients:
        """The gradients of the linear layer's inputs."""
        found = backward_pass(self.projection, self.states(), self.gradient, needs=needs)
        dense = found.hidden
        if dense is not None and not self.form.whole:
            flat = self.hidden.shape[:-1].numel(), self.hidden.shape[-1]
            dense = dense.new_zeros(flat).index_copy_(0, self.form.rows.reshape(-1), dense)
        return found._replace(hidden=None if dense is None else dense.view(self.hidden.shape))

    def add_to(self, full: Tensor, form: Form) -> None:
        """Add the gradient of what `form` stands for to a row for each hidden state."""
        projection = self.projection
        states = self.states().to(projection.dtype)
        rows = self.form.rows.reshape(-1)
        factor, curved = form.slope(self.form)
        tall, wide = projection.block_size(states.shape[0], keep_tanh=True)
        buffers = Buffers(states.device)
        for part in spans(states.shape[0], tall):
            for columns in spans(projection.classes, wide):
                logits, tanh = projection.logits(states[part], columns, buffers, keep_tanh=True)
                if form.log_softmax:
                    block = self.gradient.log_probability_block(logits, part, columns)
                else:
                    block = self.gradient.unit_block(logits, part, columns).mul_(factor)
                    if curved and tanh is not None:
                        block.mul_(tanh.square_().neg_().add_(1))
                block.mul_(self.gradient.outer[part, None])
                full[rows[part], columns] += block


def projection(
    weight: Tensor, bias: Tensor | None, dtype: torch.dtype, form: Form
) -> Projection:
    """The projection that gives what `form` stands for."""
    return Projection(
        weight, bias, dtype=dtype, scale=form.scale, cap=form.cap, block_bytes=BLOCK_BYTES
    )


def states_of(hidden: Tensor, form: Form) -> Tensor:
    """The hidden states of a form's rows."""
    flat = hidden.detach().reshape(-1, hidden.shape[-1])
    return flat if form.whole else flat[form.rows.reshape(-1)]


class LazyGradient(torch.Tensor):
    """The gradient of what a form stands for; every op on it but a sum computes its values."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    parts: list[Part]
    form: Form

    @staticmethod
    def of(parts: list[Part], form: Form) -> LazyGradient:
        made: Any = torch.Tensor._make_wrapper_subclass(
            LazyGradient, form.shape, dtype=form.dtype, device=form.rows.device
        )
        made.parts, made.form = parts, form
        return cast(LazyGradient, made)

    def at(self, form: Form) -> LazyGradient:
        """The gradient of the tensor from which this one's was made."""
        return LazyGradient.of(self.parts, form)

    def of_inputs(self, needs: tuple[bool, bool, bool]) -> Gradients:
        """The gradients of the linear layer's inputs."""
        total = self.parts[0].of_inputs(needs)
        for part in self.parts[1:]:
            more = part.of_inputs(needs)
            total = Gradients(
                *(
                    a if a is None or b is None else a.add_(b)
                    for a, b in zip(total, more, strict=True)
                )
            )
        return total

    def value(self) -> Tensor:
        """The gradient as an ordinary tensor."""
        first, form = self.parts[0], self.form
        with torch.no_grad(), torch.autocast(form.rows.device.type, enabled=False):
            full = torch.zeros(
                first.hidden.shape[:-1].numel(),
                form.classes,
                dtype=first.projection.accumulate,
                device=form.rows.device,
            )
            for part in self.parts:
                part.add_to(full, form)
            if not form.whole:
                full = full[form.rows.reshape(-1)]
            full = full.view(*form.rows.shape, form.classes).to(form.dtype)
            return full.movedim(-1, form.class_dim)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0].at(args[0].form)
        if func is torch.ops.aten.add.Tensor and not kwargs and len(args) == 2:
            one, other = args
            if isinstance(one, LazyGradient) and isinstance(other, LazyGradient):
                return LazyGradient.of([*one.parts, *other.parts], one.form)
        args, kwargs = values_of((args, kwargs or {}))
        return func(*args, **kwargs)


def values_of(tree: Any) -> Any:
    """The same with ordinary tensors in place of lazy gradients."""
    return tree_map_only(LazyGradient, lambda gradient: gradient.value(), tree)
