"""The nodes that lazy logits have in autograd's graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from encke.head.criterion import Criterion
from encke.head.embedding import give_to_shared
from encke.head.forms import Form
from encke.head.lazy_gradient import LazyGradient, Part, projection, states_of
from encke.head.passes import forward_pass, row_gradient

if TYPE_CHECKING:
    from encke.head.family import Family

Replay = Callable[[Tensor], Tensor]


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """F.linear in the dtype that it was called with, or that autocast then had."""
    with torch._C.DisableTorchFunction(), torch.autocast(hidden.device.type, enabled=False):
        return F.linear(
            hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        )


class LazyLinear(torch.autograd.Function):
    """The linear layer: gives a tensor without values, and takes gradients of both kinds.

    The weight comes in a list, and in the graph as what `embedding.shared` gives for it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        _stand_in: Tensor,
        bias: Tensor | None,
        form: Form,
        make: Callable[[Form], Tensor],
        weight: list[Tensor],
    ) -> Tensor:
        # The logits are computed from `hidden`: an error in it would change every probability,
        # so whoever packs saved tensors must keep it exact.
        ctx.save_for_backward(hidden, weight[0], bias)
        ctx.set_materialize_grads(False)
        ctx.dtype = form.dtype
        return make(form)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[:3]
        if gradient is None:
            return None, None, None, None, None, None
        if isinstance(gradient, LazyGradient):
            found = gradient.of_inputs(needs)
            give_to_shared(ctx.next_functions[1][0], found.weight)
            return *found, None, None, None
        hidden, weight, bias = ctx.saved_tensors
        dtype = ctx.dtype
        flat = gradient.reshape(-1, gradient.shape[-1])
        for_hidden = for_weight = for_bias = None
        with torch.autocast(hidden.device.type, enabled=False):
            if needs[0]:
                for_hidden = (gradient @ weight.to(dtype)).to(hidden.dtype)
            if needs[1]:
                states = hidden.reshape(-1, hidden.shape[-1]).to(dtype)
                for_weight = (flat.t() @ states).to(weight.dtype)
            if needs[2] and bias is not None:
                for_bias = flat.sum(0).to(bias.dtype)
        return for_hidden, for_weight, for_bias, None, None, None


class LazyStep(torch.autograd.Function):
    """A function that stays lazy."""

    @staticmethod
    def forward(
        ctx: Any,
        parent: Tensor,
        forms: tuple[Form, Form],
        path: tuple[Replay, ...],
        root: Any,
        make: Callable[[Form], Tensor],
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.parent_form, form = forms
        ctx.path, ctx.root = path, root
        return make(form)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            found: Tensor | None = None
        elif isinstance(gradient, LazyGradient):
            found = gradient.at(ctx.parent_form)
        else:
            again = torch.is_grad_enabled()  # create_graph=True
            with torch.enable_grad():
                value = _value(ctx.root, ctx.path[:-1], detach=not again)
                result = ctx.path[-1](value)
                (found,) = torch.autograd.grad(result, value, gradient, create_graph=again)
        return found, None, None, None, None


class LazyCrossEntropy(torch.autograd.Function):
    """The loss of lazy logits."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        family: Family,
        form: Form,
        target: Tensor,
        class_weight: Tensor | None,
        criterion: Criterion,
        loss_dtype: torch.dtype,
        path: tuple[Replay, ...],
        root: Any,
    ) -> Tensor:
        loss, lse = forward_pass(
            projection(family.weight, family.bias, family.dtype, form),
            states_of(family.hidden, form),
            target.reshape(-1),
            class_weight,
            criterion,
            loss_dtype,
        )
        ctx.save_for_backward(target, class_weight, lse)
        ctx.root, ctx.path, ctx.form, ctx.criterion = root, path, form, criterion
        return loss.view(target.shape) if criterion.reduction == "none" else loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        target, class_weight, lse = ctx.saved_tensors
        nothing = [None] * 8
        if torch.is_grad_enabled():  # create_graph=True
            logits = _value(ctx.root, ctx.path)
            loss = _stock_loss(logits, ctx.form, target, class_weight, ctx.criterion)
            found = torch.autograd.grad(
                loss, logits, upstream.to(loss.dtype), create_graph=True
            )
            return *found, *nothing
        hidden, weight, bias = ctx.root.saved_tensors
        gradient = row_gradient(
            target.reshape(-1), class_weight, ctx.criterion, lse, upstream, weight.shape[0]
        )
        part = Part(hidden, weight, bias, ctx.root.dtype, ctx.form, gradient)
        return LazyGradient.of([part], ctx.form), *nothing


def _value(root: Any, path: tuple[Replay, ...], *, detach: bool = False) -> Tensor:
    """What a lazy tensor stands for, from the tensors that the linear layer's node saved."""
    hidden, weight, bias = root.saved_tensors
    value = linear(hidden, weight, bias, root.dtype)
    if detach:
        value = value.detach().requires_grad_()
    for step in path:
        value = step(value)
    return value


def _stock_loss(
    values: Tensor,
    form: Form,
    target: Tensor,
    class_weight: Tensor | None,
    criterion: Criterion,
) -> Tensor:
    if form.log_softmax:
        return F.nll_loss(
            values,
            target,
            class_weight,
            ignore_index=criterion.ignore_index,
            reduction=criterion.reduction,
        )
    return F.cross_entropy(
        values,
        target,
        class_weight,
        ignore_index=criterion.ignore_index,
        reduction=criterion.reduction,
        label_smoothing=criterion.label_smoothing,
    )


class Materialised(torch.autograd.Function):
    """Values for a lazy tensor, which gets their gradient."""

    @staticmethod
    def forward(ctx: Any, _lazy: Tensor, family: Family) -> Tensor:
        return family.values()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def node_of(lazy: Tensor) -> Any:
    """The node that made a lazy tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return cast(Any, lazy.grad_fn)
