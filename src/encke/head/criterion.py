"""Cross-entropy as a function of few numbers per row: its value and its gradient.

With logits z, lse = log Σ exp z, class weights w (ones if there are none), target y and label
smoothing s, a row costs

    (1 - s) · w_y · (lse - z_y)  +  s / V · (lse · Σ w_j - Σ w_j z_j)

and its gradient is, with g for what the reduction and the later graph multiply it by,

    outer · (softmax(z)_j - at_target · [j = y] - smooth · w_j).

Three numbers per row stand for the whole gradient of the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from encke.errors import UnsupportedError, did_you_mean

REDUCTIONS = ("mean", "sum", "none")


class Sums(NamedTuple):
    """What a row's loss needs of its logits.

    lse     log Σ exp z_j
    picked  the logit of the target
    total   Σ w_j z_j, for label smoothing only
    """

    lse: Tensor
    picked: Tensor
    total: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """The options of a cross-entropy."""

    reduction: str = "mean"
    ignore_index: int = -100
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            hint = did_you_mean(self.reduction, REDUCTIONS)
            raise UnsupportedError(
                f"reduction is {self.reduction!r}; use one of {', '.join(REDUCTIONS)}{hint}"
            )
        if not 0 <= self.label_smoothing <= 1:
            raise UnsupportedError(
                f"label_smoothing is {self.label_smoothing}; it must be from 0 to 1"
            )

    def rows(self, target: Tensor, classes: int, class_weight: Tensor | None) -> Rows:
        """What the criterion needs of flat targets.

        An IndexError names a target outside of the classes, as F.cross_entropy's does.
        """
        counted = target != self.ignore_index
        label = torch.where(counted, target, 0)
        if target.device.type == "cpu" and target.numel():
            for extreme in (int(label.min()), int(label.max())):
                if not 0 <= extreme < classes:
                    raise IndexError(f"Target {extreme} is out of bounds.")
        return Rows(counted, label, class_weight)

    def reduce(self, losses: Tensor, rows: Rows, dtype: torch.dtype) -> Tensor:
        if self.reduction == "none":
            return losses.to(dtype)
        total = losses.sum()
        if self.reduction == "mean":
            total = total / rows.total_weight(losses.dtype)
        return total.to(dtype)

    def row_losses(self, rows: Rows, sums: Sums, classes: int) -> Tensor:
        """The loss of each row, 0 where it is ignored."""
        lse = sums.lse
        losses = (lse - sums.picked) * rows.weight(lse.dtype)
        if sums.total is not None:
            smoothing = self.label_smoothing
            spread = lse * rows.sum_of_weights(lse.dtype, classes) - sums.total
            losses = (1 - smoothing) * losses + (smoothing / classes) * spread
        return torch.where(rows.counted, losses, 0)

    def gradient(self, rows: Rows, lse: Tensor, upstream: Tensor, classes: int) -> RowGradient:
        """The gradient of the logits; `upstream` is that of the result of `reduce`."""
        each = upstream.to(lse.dtype)
        if self.reduction == "mean":
            each = each / rows.total_weight(lse.dtype)
        smoothing = self.label_smoothing
        hit = torch.where(rows.counted, (1 - smoothing) * rows.weight(lse.dtype) * each, 0)
        if not smoothing:
            return RowGradient(rows.label, lse, hit, (hit != 0).to(lse.dtype), None, None)
        spread = torch.where(rows.counted, each * (smoothing / classes), 0)
        outer = hit + spread * rows.sum_of_weights(lse.dtype, classes)
        safe = torch.where(outer == 0, 1, outer)
        weight = rows.class_weight
        if weight is not None:
            weight = weight.to(lse.dtype)
        return RowGradient(rows.label, lse, outer, hit / safe, spread / safe, weight)


class Rows:
    """The targets of the rows of a loss.

    counted       whether a row is not ignored
    label         its target; 0 where it is ignored
    class_weight  None if every class counts the same
    """

    def __init__(self, counted: Tensor, label: Tensor, class_weight: Tensor | None) -> None:
        self.counted, self.label, self.class_weight = counted, label, class_weight

    def weight(self, dtype: torch.dtype) -> Tensor:
        """The weight of each row's class."""
        if self.class_weight is None:
            return torch.ones((), dtype=dtype, device=self.label.device)
        return self.class_weight.to(dtype)[self.label]

    def total_weight(self, dtype: torch.dtype) -> Tensor:
        """What a mean divides by: the weights of the rows that count."""
        return torch.where(self.counted, self.weight(dtype), 0).sum()

    def sum_of_weights(self, dtype: torch.dtype, classes: int) -> Tensor | float:
        return (
            float(classes) if self.class_weight is None else self.class_weight.to(dtype).sum()
        )

    def select(self, kept: Tensor) -> Rows:
        return Rows(self.counted[kept], self.label[kept], self.class_weight)


class RowGradient(NamedTuple):
    """The gradient of the logits: a few numbers for each row.

    outer      what multiplies the row
    at_target  what is subtracted at its target
    smooth     what is subtracted everywhere, times the class's weight; None without smoothing
    """

    label: Tensor
    lse: Tensor
    outer: Tensor
    at_target: Tensor
    smooth: Tensor | None
    class_weight: Tensor | None

    def unit_block(self, logits: Tensor, rows: slice, columns: slice) -> Tensor:
        """Turn a block of logits into the gradient there, but for `outer`, in place."""
        block = logits.sub_(self.lse[rows, None]).exp_()
        return self._subtract_target(block, rows, columns)

    def log_probability_block(self, block: Tensor, rows: slice, columns: slice) -> Tensor:
        """As `unit_block`, for log-probabilities; `block` is overwritten."""
        return self._subtract_target(block.zero_(), rows, columns)

    def _subtract_target(self, block: Tensor, rows: slice, columns: slice) -> Tensor:
        if self.smooth is not None:
            smooth = self.smooth[rows, None]
            if self.class_weight is None:
                block.sub_(smooth)
            else:
                block.addcmul_(smooth, self.class_weight[columns], value=-1)
        place, inside = place_in(self.label[rows], columns)
        hit = torch.where(inside, -self.at_target[rows], 0)
        return block.scatter_add_(1, place[:, None], hit[:, None])

    def select(self, kept: Tensor) -> RowGradient:
        """The gradient of some of the rows."""
        smooth = None if self.smooth is None else self.smooth[kept]
        return self._replace(
            label=self.label[kept],
            lse=self.lse[kept],
            outer=self.outer[kept],
            at_target=self.at_target[kept],
            smooth=smooth,
        )


def place_in(label: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Where each label lies in a block of columns (0 if it does not), and whether it does."""
    inside = (label >= columns.start) & (label < columns.stop)
    return torch.where(inside, label - columns.start, 0), inside
