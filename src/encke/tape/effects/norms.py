"""What an error in a norm's input does to its gradients, in closed form.

With x̂ = (x - μ)/σ, g = γ dy and D values to a mean, a norm's backward is

    dγ = Σ dy x̂        dx = (g - mean(g) - x̂ mean(g x̂)) / σ

so an independent error of variance m in x̂ adds m Σ dy² to ‖dγ‖², and to ‖dx‖²

    m (D mean(g x̂)² + Σ g² / D) / σ²        for each mean

(‖x̂‖² = D). mean(g x̂) need not be computed: ‖σ dx‖² = ‖g‖² - D mean(g)² - D mean(g x̂)². So
nothing is decoded, no error is drawn and the op is not called again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from encke.tape.batch_norm.channels import NORMS, statistics
from encke.tape.effects.squares import square
from encke.tape.storage.sources import StoredSource, TensorSource, ViewSource
from encke.tape.storage.stored_tensor import StoredTensor

_ROWS = 1 << 18  # values that are looked at together


class NormChange(NamedTuple):
    """Expected ‖Δ‖² of the parameters' gradients, and ‖Δdx‖² / ‖dx‖²."""

    own: float
    stream: float


def norm_change(
    node: Any,
    op: str,
    slot: StoredTensor,
    source: TensorSource,
    returned: Sequence[Tensor | None],
    received: Sequence[Tensor | None],
    parameters: Sequence[int],
) -> NormChange | None:
    """What the error of `slot` does where `source` is a norm's input; None if it is not.

    parameters  which of the op's inputs are parameters: an instance norm's weight is computed
                from one, and its gradient flows on
    """
    found = _norm_change(node, op, slot, source, returned, received)
    if found is None or 1 in parameters:
        return found
    weight = square(returned[1])
    return NormChange(0.0, max(found.stream, found.own / weight if weight > 0 else 0.0))


def _norm_change(
    node: Any,
    op: str,
    slot: StoredTensor,
    source: TensorSource,
    returned: Sequence[Tensor | None],
    received: Sequence[Tensor | None],
) -> NormChange | None:
    dy, dx = received[0], returned[0]
    if dy is None or dx is None or not isinstance(source, StoredSource | ViewSource):
        return None
    if op in NORMS:
        return _batch_norm(node, op, slot, source.slot, dy, returned)
    if slot is not source.slot or slot.channels is not None or slot.gate is not None:
        return None
    variance = slot.error**2 / 3
    if op == "NativeLayerNorm":
        rows = dx.numel() // node._saved_result2.numel()
        return _row_norm(dy, dx, node._saved_result2, node._saved_weight, rows, variance)
    if op == "NativeGroupNorm":
        return _group_norm(node, dy, dx, variance)
    return None


def _batch_norm(
    node: Any,
    op: str,
    slot: StoredTensor,
    kept: StoredTensor,
    dy: Tensor,
    returned: Sequence[Tensor | None],
) -> NormChange | None:
    dx, weight = returned[0], node._saved_weight
    assert dx is not None
    channels = dy.shape[1]
    _, spread = statistics(node, op)
    spread = spread.double()
    scale = torch.ones_like(spread) if weight is None else weight.detach().double()
    variance = _in_normal_units(slot, kept, scale, spread)
    if variance is None:
        return None
    others = [d for d in range(dy.ndim) if d != 1]
    incoming = torch.linalg.vector_norm(dy, dim=others).double() ** 2
    own = float((variance * incoming).sum()) if returned[1] is not None else 0.0
    if not getattr(node, "_saved_training", True):
        return NormChange(own, 0.0)
    count = dx.numel() / channels
    gain = (scale * spread) ** 2
    if returned[1] is not None:
        along = returned[1].double() ** 2 / count
    else:
        centred = incoming - dy.sum(dim=others).double() ** 2 / count
        outgoing = torch.linalg.vector_norm(dx, dim=others).double() ** 2
        along = (centred - outgoing / gain.clamp(min=1e-30)).clamp(min=0)
    passing = _passing_share(kept)
    change = float((gain * variance * (passing * along + incoming / count)).sum())
    whole = square(dx)
    return NormChange(own, change / whole if whole > 0 else 0.0)


def _in_normal_units(
    slot: StoredTensor, kept: StoredTensor, scale: Tensor, spread: Tensor
) -> Tensor | None:
    """The variance of the error in x̂, by channel; None if it cannot be told."""
    variance = torch.full_like(scale, slot.error**2 / 3)
    if kept.remainder is None:
        if slot is not kept:
            return None
        return variance if slot.channels is not None else variance * spread**2
    gain = kept.remainder.gain_of(slot)  # of what the sum is made of
    return None if gain is None else variance * (gain.double() / scale) ** 2


def _passing_share(kept: StoredTensor) -> float:
    """Of a norm's values: those that carry an error."""
    slot = kept if kept.remainder is None else kept.remainder.out
    return slot.values / slot.gate.values if slot.gate is not None else 1.0


def _row_norm(
    dy: Tensor, dx: Tensor, spread: Tensor, weight: Tensor | None, count: int, variance: float
) -> NormChange:
    """A layer norm, whose means are over the last `count` values."""
    spread = spread.detach().reshape(-1).double() ** 2
    dy, dx = dy.reshape(-1, count), dx.reshape(-1, count)
    scale = None if weight is None else weight.detach().reshape(-1)
    own = change = 0.0
    step = max(1, _ROWS // count)
    for begin in range(0, len(dy), step):
        rows = slice(begin, begin + step)
        inverse = spread[rows]
        g = dy[rows] if scale is None else dy[rows] * scale
        own += variance * float((inverse * _row_squares(dy[rows])).sum())
        incoming = _row_squares(g)
        outgoing = _row_squares(dx[rows]) / inverse.clamp(min=1e-30)
        along = (incoming - g.sum(1).double() ** 2 / count - outgoing).clamp(min=0)
        change += variance * float((inverse**2 * (along + incoming / count)).sum())
    whole = square(dx)
    return NormChange(own, change / whole if whole > 0 else 0.0)


def _group_norm(node: Any, dy: Tensor, dx: Tensor, variance: float) -> NormChange:
    groups, samples = node._saved_group, node._saved_N
    spread = node._saved_result2.detach().reshape(samples, groups).double() ** 2
    weight = node._saved_weight
    inside = node._saved_C // groups
    scale = None if weight is None else weight.detach().view(1, groups, inside, 1)
    own = change = 0.0
    count = dx.numel() // (samples * groups)
    for n in range(samples):
        one = dy[n].reshape(1, groups, inside, -1)
        g = one if scale is None else one * scale
        inverse = spread[n]
        own += variance * float((inverse * _row_squares(one[0].flatten(1))).sum())
        flat = g[0].flatten(1)
        incoming = _row_squares(flat)
        outgoing = _row_squares(dx[n].reshape(groups, -1)) / inverse.clamp(min=1e-30)
        along = (incoming - flat.sum(1).double() ** 2 / count - outgoing).clamp(min=0)
        change += variance * float((inverse**2 * (along + incoming / count)).sum())
    whole = square(dx)
    return NormChange(own, change / whole if whole > 0 else 0.0)


def _row_squares(rows: Tensor) -> Tensor:
    squares: Tensor = torch.linalg.vector_norm(rows.float(), dim=1).double().square()
    return squares
