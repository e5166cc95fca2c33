"""Cross-entropy of logits that are there, with one more tensor of their size instead of three.

Autograd saves log-softmax's result beside the logits, and its backward makes two tensors more.
Here the logits are saved, log-softmax is computed again for a few rows at a time, and the
gradient is the only tensor of their size that is made. Without label smoothing the same
kernels run on the same rows, so gradients are those of F.cross_entropy bit for bit; with it
they are within rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from encke.head.blocks import BLOCK_BYTES, HALF, accumulation_dtype, spans
from encke.head.criterion import Criterion, Sums
from encke.head.passes import row_gradient

#: Logits of fewer bytes are left to torch: the temporaries of blocks would take what is saved.
SMALLEST = 32 << 20


def cross_entropy(
    logits: Tensor, target: Tensor, class_weight: Tensor | None, criterion: Criterion
) -> Tensor | None:
    """F.cross_entropy of large logits that need a gradient; None where torch must do it.

    logits  (rows, classes), or (rows, classes, ...) that lie in memory with the classes last

    >>> logits, target = torch.randn(6, 10, requires_grad=True), torch.arange(6)
    >>> cross_entropy(logits, target, None, Criterion()) is None  # too small
    True
    """
    if not _is_served(logits, target, class_weight):
        return None
    last = logits.movedim(1, -1)
    loss_dtype = logits.dtype
    if torch.is_autocast_enabled(logits.device.type) and logits.dtype in HALF:
        loss_dtype = torch.float32
    loss: Tensor = BlockwiseCrossEntropy.apply(
        last.view(-1, last.shape[-1]), target.reshape(-1), class_weight, criterion, loss_dtype
    )  # type: ignore[no-untyped-call]
    return loss.view(target.shape) if criterion.reduction == "none" else loss


def _is_served(logits: Tensor, target: Tensor, class_weight: Tensor | None) -> bool:
    if type(logits) is not Tensor or not logits.requires_grad or not torch.is_grad_enabled():
        return False
    if logits.layout != torch.strided or logits.dim() < 2 or not logits.is_floating_point():
        return False
    if logits.numel() * logits.element_size() < SMALLEST:
        return False
    last = logits.movedim(1, -1)
    if not last.is_contiguous() or target.shape != last.shape[:-1]:
        return False
    return are_class_indices(target, logits.device) and is_class_weight(class_weight, logits)


def are_class_indices(target: Any, device: torch.device) -> bool:
    return type(target) is Tensor and target.dtype == torch.int64 and target.device == device


def is_class_weight(weight: Any, logits: Tensor) -> bool:
    """Whether class weights are as F.cross_entropy takes them, and need no gradient."""
    if weight is None:
        return True
    if not isinstance(weight, Tensor) or weight.requires_grad or weight.device != logits.device:
        return False
    classes = logits.shape[1] if logits.dim() > 1 else logits.shape[0]
    return weight.dtype == logits.dtype and weight.shape == (classes,)


class BlockwiseCrossEntropy(torch.autograd.Function):
    """Saves the logits, and the logarithm of the partition sum of each row."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        criterion: Criterion,
        loss_dtype: torch.dtype,
    ) -> Tensor:
        classes, wide = logits.shape[1], accumulation_dtype(logits.dtype)
        rows = criterion.rows(target, classes, class_weight)
        smoothing = criterion.label_smoothing > 0
        with torch.autocast(logits.device.type, enabled=False):
            found = [logits.new_empty(target.shape, dtype=wide) for _ in range(3)]
            lse, picked, total = found
            for part in spans(logits.shape[0], _rows_of_a_block(logits)):
                block = logits[part].to(wide)
                label = rows.label[part, None]
                lse[part] = torch.logsumexp(block, 1)
                here = torch.log_softmax(block, 1) if not smoothing else block
                picked[part] = here.gather(1, label).squeeze(1)
                if smoothing:
                    weight = None if class_weight is None else class_weight.to(wide)
                    total[part] = block.sum(1) if weight is None else block @ weight
            if smoothing:
                losses = criterion.row_losses(rows, Sums(lse, picked, total), classes)
                loss = criterion.reduce(losses, rows, loss_dtype)
            else:
                loss = _negative_log_likelihood(picked, target, rows, criterion, loss_dtype)
        ctx.save_for_backward(logits, target, class_weight, lse)
        ctx.criterion = criterion
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, class_weight, lse = ctx.saved_tensors
        criterion = ctx.criterion
        if torch.is_grad_enabled():  # create_graph=True
            loss = F.cross_entropy(
                logits.to(upstream.dtype),
                target,
                class_weight,
                ignore_index=criterion.ignore_index,
                reduction=criterion.reduction,
                label_smoothing=criterion.label_smoothing,
            )
            found = torch.autograd.grad(loss, logits, upstream, create_graph=True)
            return *found, None, None, None, None
        with torch.autocast(logits.device.type, enabled=False):
            wide = lse.dtype
            gradient = row_gradient(
                target, class_weight, criterion, lse, upstream, logits.shape[1]
            )
            result = torch.empty_like(logits)
            for part in spans(logits.shape[0], _rows_of_a_block(logits)):
                block = logits[part].to(wide)
                if gradient.smooth is None:
                    log_probability = torch.log_softmax(block, 1)
                    hit = torch.zeros_like(block)
                    hit.scatter_(1, gradient.label[part, None], -gradient.outer[part, None])
                    block = torch._log_softmax_backward_data(hit, log_probability, 1, wide)
                else:
                    block = block.clone() if block.dtype == logits.dtype else block
                    gradient.unit_block(block, part, slice(0, logits.shape[1]))
                    block.mul_(gradient.outer[part, None])
                result[part] = block
        return result, None, None, None, None


def _rows_of_a_block(logits: Tensor) -> int:
    # A block and up to three temporaries of its size.
    return max(
        1, BLOCK_BYTES // 4 // (logits.shape[1] * accumulation_dtype(logits.dtype).itemsize)
    )


def _negative_log_likelihood(
    picked: Tensor, target: Tensor, rows: Any, criterion: Criterion, dtype: torch.dtype
) -> Tensor:
    """The loss from each row's log-probability of its target, summed as torch sums it."""
    if rows.class_weight is None:
        ignored = -100
        only = torch.where(rows.counted, 0, ignored)
        loss = F.nll_loss(
            picked[:, None], only, reduction=criterion.reduction, ignore_index=ignored
        )
        return loss.to(dtype)
    losses = torch.where(rows.counted, -picked * rows.weight(picked.dtype), 0)
    return criterion.reduce(losses, rows, dtype)
