"""Cross-entropy from hidden states and weight, without logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from encke.errors import UnsupportedError
from encke.head.blocks import BLOCK_BYTES, Projection
from encke.head.criterion import Criterion
from encke.head.passes import Gradients, backward_pass, forward_pass, row_gradient


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Tensor:
    """The cross-entropy of logits that are never made as a whole.

    Equal, but for rounding, to

        logits = F.linear(hidden, weight, bias) * scale
        logits = softcap * torch.tanh(logits / softcap)  # if softcap is given
        F.cross_entropy(logits, target, class_weight, ...)

    with the classes in the last dimension. Forward and backward each compute the logits in
    blocks of about `block_bytes`, so backward costs one product more than it would.

    hidden        (..., features)
    weight        (classes, features)
    target        (...), class indices
    class_weight  `weight` of F.cross_entropy
    scale         what the logits are multiplied by
    softcap       the bound c of c · tanh(logits / c)

    >>> hidden, weight = torch.randn(6, 4), torch.randn(10, 4, requires_grad=True)
    >>> target = torch.tensor([1, 2, 3, -100, 5, 6])
    >>> loss = linear_cross_entropy(hidden, weight, target)
    >>> bool(torch.isclose(loss, F.cross_entropy(hidden @ weight.t(), target)))
    True
    """
    _check(hidden, weight, target, bias, class_weight)
    criterion = Criterion(
        reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing
    )
    dtype, loss_dtype = product_dtype(hidden, weight, bias)
    cap = None if softcap is None else float(softcap)
    if cap == 0 or block_bytes < 1:
        raise UnsupportedError(
            f"softcap is {softcap} and block_bytes {block_bytes}; softcap must not be 0, and "
            "block_bytes must be positive"
        )
    options = _Options(
        dtype, loss_dtype, criterion, scale if cap is None else scale / cap, cap, block_bytes
    )
    loss: Tensor = LinearCrossEntropy.apply(
        hidden.reshape(-1, hidden.shape[-1]),
        weight,
        bias,
        target.reshape(-1),
        class_weight,
        options,
    )  # type: ignore[no-untyped-call]
    return loss.view(target.shape) if reduction == "none" else loss


def product_dtype(
    hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[torch.dtype, torch.dtype]:
    """The dtype that F.linear computes in now, and that of a cross-entropy of its result."""
    given = {t.dtype for t in (hidden, weight, bias) if t is not None}
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and torch.float64 not in given:
        return torch.get_autocast_dtype(device), torch.float32
    if len(given) > 1:
        raise UnsupportedError(
            f"hidden states, weight and bias have dtypes {sorted(map(str, given))}; convert "
            "them to one, or use torch.autocast"
        )
    return hidden.dtype, hidden.dtype


class _Options(NamedTuple):
    dtype: torch.dtype
    loss_dtype: torch.dtype
    criterion: Criterion
    scale: float
    cap: float | None
    block_bytes: int

    def projection(self, weight: Tensor, bias: Tensor | None) -> Projection:
        return Projection(
            weight,
            bias,
            dtype=self.dtype,
            scale=self.scale,
            cap=self.cap,
            block_bytes=self.block_bytes,
        )


class LinearCrossEntropy(torch.autograd.Function):
    """Saves its inputs, and the logarithm of the partition sum of each row."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        class_weight: Tensor | None,
        options: _Options,
    ) -> Tensor:
        loss, lse = forward_pass(
            options.projection(weight, bias),
            hidden,
            target,
            class_weight,
            options.criterion,
            options.loss_dtype,
        )
        # The logits are computed from `hidden` again: an error in it would change every
        # probability, so whoever packs saved tensors must keep it exact.
        ctx.save_for_backward(hidden, weight, bias, target, class_weight, lse)
        ctx.options = options
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, class_weight, lse = ctx.saved_tensors
        options, needs = ctx.options, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # create_graph=True
            found = _differentiable_gradients(
                hidden, weight, bias, target, class_weight, options, upstream, needs
            )
        else:
            found = backward_pass(
                options.projection(weight, bias),
                hidden,
                row_gradient(
                    target, class_weight, options.criterion, lse, upstream, weight.shape[0]
                ),
                needs=needs,
            )
        return *found, None, None, None


def composed(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    options: _Options,
) -> Tensor:
    """The same loss from whole logits: what a second derivative is taken of."""
    dtype = options.dtype
    logits = F.linear(
        hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    )
    if options.scale != 1:
        logits = logits * options.scale
    if options.cap is not None:
        logits = options.cap * torch.tanh(logits)
    criterion = options.criterion
    return F.cross_entropy(
        logits.to(options.loss_dtype),
        target,
        class_weight,
        ignore_index=criterion.ignore_index,
        reduction=criterion.reduction,
        label_smoothing=criterion.label_smoothing,
    )


def _differentiable_gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    options: _Options,
    upstream: Tensor,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    with torch.autocast(hidden.device.type, enabled=False):
        loss = composed(hidden, weight, bias, target, class_weight, options)
    inputs = [t for t, need in zip((hidden, weight, bias), needs, strict=True) if need]
    found = iter(torch.autograd.grad(loss, inputs, upstream, create_graph=True))  # type: ignore[arg-type]
    return Gradients(*(next(found) if need else None for need in needs))


def _check(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    class_weight: Tensor | None,
) -> None:
    if weight.dim() != 2 or hidden.dim() < 1 or hidden.shape[-1] != weight.shape[1]:
        raise UnsupportedError(
            f"hidden states have shape {tuple(hidden.shape)} and weight {tuple(weight.shape)}; "
            "they must be (..., features) and (classes, features)"
        )
    if target.is_floating_point() or target.shape != hidden.shape[:-1]:
        raise UnsupportedError(
            f"target has shape {tuple(target.shape)} and dtype {target.dtype}; it must hold "
            f"one class index for each hidden state, shape {tuple(hidden.shape[:-1])}; for "
            "class probabilities use F.cross_entropy"
        )
    for name, t in (("bias", bias), ("class_weight", class_weight)):
        if t is not None and t.shape != weight.shape[:1]:
            raise UnsupportedError(
                f"{name} has shape {tuple(t.shape)}; it must be ({weight.shape[0]},)"
            )
    if class_weight is not None and class_weight.requires_grad:
        raise UnsupportedError(
            "class_weight requires a gradient, which is not computed; use F.cross_entropy"
        )
