"""The loss of a batch, and one backward pass that samples its curvature."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from encke.store.errors import StoreError

Objective = Callable[[Any, Any], Tensor]


def default_objective(model: nn.Module, batch: Any) -> Tensor:
    """`model(**batch).loss` for a dictionary, cross-entropy (or squared error) for a pair."""
    if isinstance(batch, Mapping):
        found = model(**batch)
        loss = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", None)
        if isinstance(loss, Tensor):
            return loss
    elif isinstance(batch, Sequence) and len(batch) == 2:
        output, target = model(batch[0]), batch[1]
        if isinstance(output, Tensor) and isinstance(target, Tensor):
            if target.is_floating_point():
                return F.mse_loss(output, target)
            if output.ndim == target.ndim + 1 and output.shape[:-1] == target.shape:
                return F.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))
            return F.cross_entropy(output, target)
    raise StoreError(
        f"no loss is known for a batch of type {type(batch).__name__}; give "
        "objective=lambda model, batch: … that returns the loss as a tensor"
    )


class DrawnResiduals(TorchFunctionMode):
    """Inside, losses become linear in the prediction, with a slope that is drawn.

    The slope has the covariance of the loss's second derivative, as that of labels drawn from
    the prediction has, but no rare large values. So the expected square of a gradient is the
    Gauss–Newton diagonal: for a mean over N labels, slopes are divided by √N.

    values  of the losses that were seen, with the labels that were given
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator
        self.values: list[float] = []

    @property
    def losses(self) -> int:
        return len(self.values)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        drawn = _DRAWN.get(func)
        if drawn is None:
            return func(*args, **kwargs)
        with torch.no_grad():
            given = func(*args, **kwargs)
        self.values.append(float(given.mean()))
        signs = _Signs(self._generator)
        return drawn(signs, *args, **kwargs)


class _Signs:
    """±1 at random, like a tensor."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def like(self, x: Tensor) -> Tensor:
        drawn = torch.randint(0, 2, x.shape, generator=self._generator)
        return (drawn * 2 - 1).to(device=x.device, dtype=torch.float32)


def _linear(prediction: Tensor, slope: Tensor, reduction: str, count: float) -> Tensor:
    total = (prediction.float() * slope).sum()
    if reduction == "sum":
        return total
    mean = total / math.sqrt(max(1.0, count))
    # Whoever reduces single losses to their mean gets the same.
    return mean if reduction == "mean" else mean.expand(max(1, int(count)))


def _class_slope(signs: _Signs, p: Tensor) -> Tensor:
    """A slope of covariance diag(p) − ppᵀ: √p u − p (√p·u) with u of ±1."""
    root = p.sqrt()
    u = signs.like(p)
    return root * u - p * (root * u).sum(-1, keepdim=True)


def _classes(
    signs: _Signs, scores: Tensor, p: Tensor, target: Tensor, reduction: str, ignore: int
) -> Tensor:
    slope = _class_slope(signs, p)
    count = float(p[..., 0].numel())
    if not target.is_floating_point():
        counted = target != ignore
        slope, count = slope * counted.unsqueeze(-1), float(counted.sum())
    return _linear(scores, slope, reduction, count)


def _cross_entropy(
    signs: _Signs,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    scores = input.movedim(1, -1) if input.ndim > 1 else input
    p = torch.softmax(scores.detach().float(), -1)
    return _classes(signs, scores, p, target, reduction, ignore_index)


def _nll(
    signs: _Signs,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    # The scores are log p, up to a constant; a slope without a mean does not see it.
    scores = input.movedim(1, -1) if input.ndim > 1 else input
    p = torch.softmax(scores.detach().float(), -1)
    return _classes(signs, scores, p, target, reduction, ignore_index)


def _binary(
    signs: _Signs,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    p = torch.sigmoid(input.detach().float())
    slope = torch.sqrt(p * (1.0 - p)) * signs.like(p)
    return _linear(input, slope, reduction, float(input.numel()))


def _squared(
    signs: _Signs,
    input: Tensor,
    target: Tensor,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    slope = math.sqrt(2.0) * signs.like(input)
    return _linear(input, slope, reduction, float(input.numel()))


_DRAWN: dict[Any, Callable[..., Tensor]] = {
    F.cross_entropy: _cross_entropy,
    F.nll_loss: _nll,
    F.binary_cross_entropy_with_logits: _binary,
    F.mse_loss: _squared,
}
