"""The loss of a batch, and the same with labels that the model itself draws.

The Gauss–Newton matrix of a loss is the expected square of its gradient when the labels come
from the model's own prediction. So one backward pass with drawn labels is a sample of it.
"""

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


class DrawnLabels(TorchFunctionMode):
    """Inside, losses take labels drawn from the prediction in place of those given.

    A loss is also scaled so that the expected square of its gradient is the Gauss–Newton
    diagonal: a mean over N labels by √N.

    losses  how many losses were seen, and `values` what they were with the given labels
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
        return drawn(self._generator, *args, **kwargs)


def _drawn_classes(generator: torch.Generator, probabilities: Tensor) -> Tensor:
    flat = probabilities.detach().reshape(-1, probabilities.shape[-1]).float().cpu()
    drawn = torch.multinomial(flat.nan_to_num(1.0).clamp(min=1e-30), 1, generator=generator)
    return drawn.view(probabilities.shape[:-1]).to(probabilities.device)


def _scaled(losses: Tensor, reduction: str, count: float) -> Tensor:
    if reduction == "sum":
        return losses.sum()
    mean = losses.sum() / max(1.0, count) * math.sqrt(max(1.0, count))
    return mean if reduction == "mean" else mean.expand_as(losses)


def _from_log_probabilities(
    generator: torch.Generator, log_p: Tensor, target: Tensor, reduction: str, ignore: int
) -> Tensor:
    if log_p.ndim > 1:
        log_p = log_p.movedim(1, -1)
    drawn = _drawn_classes(generator, log_p.exp())
    losses = -log_p.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
    if not target.is_floating_point():
        losses = losses * (target != ignore)
        return _scaled(losses, reduction, float((target != ignore).sum()))
    return _scaled(losses, reduction, float(losses.numel()))


def _cross_entropy(
    generator: torch.Generator,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    classes = 1 if input.ndim > 1 else 0
    log_p = F.log_softmax(input.float(), classes)
    return _from_log_probabilities(generator, log_p, target, reduction, ignore_index)


def _nll(
    generator: torch.Generator,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    return _from_log_probabilities(generator, input, target, reduction, ignore_index)


def _binary(
    generator: torch.Generator,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    p = torch.sigmoid(input.detach()).float().cpu()
    drawn = torch.bernoulli(p, generator=generator).to(input)
    losses = F.softplus(input) - input * drawn
    return _scaled(losses, reduction, float(losses.numel()))


def _squared(
    generator: torch.Generator,
    input: Tensor,
    target: Tensor,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    # (y − t)² has the second derivative 2: so has the square of −2ε with ε of variance ½.
    noise = torch.randn(input.shape, generator=generator) * math.sqrt(0.5)
    losses = -2.0 * noise.to(input) * input
    return _scaled(losses, reduction, float(losses.numel()))


_DRAWN: dict[Any, Callable[..., Tensor]] = {
    F.cross_entropy: _cross_entropy,
    F.nll_loss: _nll,
    F.binary_cross_entropy_with_logits: _binary,
    F.mse_loss: _squared,
}
