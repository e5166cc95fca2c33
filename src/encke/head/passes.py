"""The two passes over the blocks of logits: sums for the loss, and gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from encke.head.blocks import Buffers, Projection, spans
from encke.head.criterion import Criterion, RowGradient, Rows, Sums, place_in


def sums(projection: Projection, hidden: Tensor, rows: Rows, *, smoothing: bool) -> Sums:
    """What the loss needs of the logits, each block of which is computed and overwritten.

    hidden  one row for each of `rows`, in the dtype of the products
    """
    count, dtype, device = hidden.shape[0], projection.accumulate, hidden.device
    lse = torch.empty(count, dtype=dtype, device=device)
    picked = torch.zeros(count, dtype=dtype, device=device)
    total = torch.zeros(count, dtype=dtype, device=device) if smoothing else None
    weight = rows.class_weight
    tall, wide = projection.block_size(count)
    buffers = Buffers(device)
    for part in spans(count, tall):
        states, label = hidden[part], rows.label[part]
        high = torch.full(label.shape, -torch.inf, dtype=dtype, device=device)
        mass = torch.zeros(label.shape, dtype=dtype, device=device)
        for columns in spans(projection.classes, wide):
            block, _ = projection.logits(states, columns, buffers)
            place, inside = place_in(label, columns)
            here = block.gather(1, place[:, None]).squeeze(1)
            picked[part] = torch.where(inside, here, picked[part])
            if total is not None:
                total[part] += (
                    block.sum(1) if weight is None else block @ weight[columns].to(dtype)
                )
            highest = torch.maximum(high, block.amax(1))
            # A row of -inf alone so far: its mass is 0, not exp(-inf + inf).
            base = torch.where(highest == -torch.inf, 0, highest)
            mass = mass * (high - base).exp() + block.sub_(base[:, None]).exp_().sum(1)
            high = highest
        lse[part] = torch.where(high == -torch.inf, 0, high) + mass.log()
    return Sums(lse, picked, total)


class Gradients(NamedTuple):
    """The gradients of hidden states, weight and bias; None where not needed."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def gradients(
    projection: Projection,
    hidden: Tensor,
    gradient: RowGradient,
    *,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    """The gradients through the logits, which are computed again block by block.

    hidden  one row for each of `gradient`'s, in the dtype of the products
    """
    count, width = hidden.shape
    dtype, wide_dtype, device = projection.dtype, projection.accumulate, hidden.device
    direct = dtype == wide_dtype == projection.weight.dtype
    outer = gradient.outer * projection.scale
    if projection.cap is not None:
        outer = outer * projection.cap
    scaled = (hidden.to(wide_dtype) * outer[:, None]).to(dtype)
    weight = projection.weight
    for_hidden = (
        torch.zeros(count, width, dtype=wide_dtype, device=device) if needs[0] else None
    )
    for_weight = torch.empty_like(weight) if needs[1] else None
    bias = projection.bias
    for_bias = (
        torch.zeros_like(bias, dtype=wide_dtype) if needs[2] and bias is not None else None
    )
    tall, wide = projection.block_size(count, keep_tanh=True)
    buffers = Buffers(device)
    for columns in spans(projection.classes, wide):
        matrix = projection.weight_block(columns)
        own = None if for_weight is None else for_weight[columns]
        if own is not None and not direct:
            own = buffers.take("gradient", (matrix.shape[0], width), wide_dtype)
        for part in spans(count, tall):
            unit = unit_block(projection, hidden[part], gradient, part, columns, buffers)
            if for_bias is not None:
                for_bias[columns] += outer[part] @ unit
            if dtype != wide_dtype:
                unit = buffers.take("product", (unit.shape[0], unit.shape[1]), dtype).copy_(
                    unit
                )
            if for_hidden is not None:
                _add_product(for_hidden[part], unit, matrix, add=True)
            if own is not None:
                _add_product(own, unit.t(), scaled[part], add=part.start > 0)
        if for_weight is not None and own is not None and not direct:
            for_weight[columns] = own
    if for_weight is not None and count == 0:
        for_weight.zero_()
    if for_hidden is not None:
        for_hidden.mul_(outer[:, None])
    return Gradients(
        for_hidden,
        for_weight,
        None if for_bias is None or bias is None else for_bias.to(bias.dtype),
    )


def unit_block(
    projection: Projection,
    hidden: Tensor,
    gradient: RowGradient,
    rows: slice,
    columns: slice,
    buffers: Buffers,
) -> Tensor:
    """The gradient of a block of products, but for each row's factor."""
    logits, tanh = projection.logits(hidden, columns, buffers, keep_tanh=True)
    unit = gradient.unit_block(logits, rows, columns)
    if tanh is not None:
        unit.mul_(tanh.square_().neg_().add_(1))
    return unit


def _add_product(target: Tensor, left: Tensor, right: Tensor, *, add: bool) -> None:
    """target = left @ right, or plus that; in half precision only the product is rounded."""
    if left.dtype != target.dtype:
        product = left @ right
        target.add_(product) if add else target.copy_(product)
    elif add:
        target.addmm_(left, right)
    else:
        torch.mm(left, right, out=target)


def forward_pass(
    projection: Projection,
    hidden: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    criterion: Criterion,
    loss_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The loss, and each row's log Σ exp z (0 for rows that are ignored and left out)."""
    rows = criterion.rows(target, projection.classes, class_weight)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        hidden = hidden.detach()
        kept = rows_that_count(rows)
        some, states = (rows, hidden) if kept is None else (rows.select(kept), hidden[kept])
        found = sums(
            projection,
            states.to(projection.dtype),
            some,
            smoothing=criterion.label_smoothing > 0,
        )
        losses = criterion.row_losses(some, found, projection.classes)
        lse = found.lse
        if kept is not None:
            lse = lse.new_zeros(target.shape).index_copy_(0, kept, lse)
            losses = losses.new_zeros(target.shape).index_copy_(0, kept, losses)
        return criterion.reduce(losses, rows, loss_dtype), lse


def row_gradient(
    target: Tensor,
    class_weight: Tensor | None,
    criterion: Criterion,
    lse: Tensor,
    upstream: Tensor,
    classes: int,
) -> RowGradient:
    """The gradient of the logits, from what the forward pass has found."""
    rows = criterion.rows(target, classes, class_weight)
    each = upstream.reshape(-1) if upstream.dim() else upstream
    return criterion.gradient(rows, lse, each, classes)


def backward_pass(
    projection: Projection,
    hidden: Tensor,
    gradient: RowGradient,
    *,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    """The gradients of hidden states (in their dtype), weight and bias."""
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        kept = _few_nonzero(gradient.outer)
        some = gradient if kept is None else gradient.select(kept)
        states = hidden.detach() if kept is None else hidden.detach()[kept]
        found = gradients(projection, states.to(projection.dtype), some, needs=needs)
        dense = found.hidden
        if dense is not None:
            dense = dense.to(hidden.dtype)
            if kept is not None:
                dense = torch.zeros_like(hidden).index_copy_(0, kept, dense)
        return found._replace(hidden=dense)


def rows_that_count(rows: Rows) -> Tensor | None:
    """The rows that are not ignored, if it pays to leave the others out; None if not.

    Masked language models ignore most rows. On a device the host would have to wait for it.
    """
    return _few_nonzero(rows.counted)


def _few_nonzero(values: Tensor) -> Tensor | None:
    if values.device.type != "cpu" or int(values.count_nonzero()) > 0.75 * values.numel():
        return None
    return values.nonzero().squeeze(1)
