"""Error feedback: what a message lost is added to the next one.

Each rank keeps, for every parameter by its name, the difference between what it meant to
send and what the others could decode. Only the mean of these residuals over ranks enters
the training, so when the number of ranks changes, each new rank starts with that mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from encke.wire.failure import answered
from encke.wire.message import Stretch


class Feedback:
    """The residuals of one rank, in float32 (float64 for float64 gradients)."""

    def __init__(self) -> None:
        self.residuals: dict[str, Tensor] = {}

    def added(self, flat: Tensor, stretches: Iterable[Stretch]) -> Tensor:
        """`flat` with the residuals on top; `flat` itself stays as it is.

        A parameter may lie there in several stretches, one after another (FSDP2). What
        another number of ranks padded it with is not there any more, or is zero.
        """
        fed = flat.clone()
        used: dict[str, int] = {}
        for stretch in stretches:
            residual = self.residuals.get(stretch.name)
            if residual is None:
                continue
            start = used.get(stretch.name, 0)
            part = residual[start : start + stretch.values].to(fed.device)
            fed[stretch.start : stretch.start + part.numel()] += part
            used[stretch.name] = start + stretch.values
        return fed

    def keep(self, fed: Tensor, sent: Tensor, stretches: Iterable[Stretch]) -> None:
        """Remember what of `fed` did not arrive."""
        lost: dict[str, list[Tensor]] = {}
        for stretch in stretches:
            here = slice(stretch.start, stretch.stop)
            # An overflow is sent verbatim and leaves ∞ - ∞; the step is lost anyway.
            lost.setdefault(stretch.name, []).append(
                (fed[here] - sent[here]).nan_to_num_(0.0, 0.0, 0.0)
            )
        self.residuals.update(
            {n: parts[0] if len(parts) == 1 else torch.cat(parts) for n, parts in lost.items()}
        )

    def mean_over_ranks(self, group: object, world: int) -> dict[str, Tensor]:
        """The residuals that stand for all ranks' together, the same on each."""
        found = {}
        for name in sorted(self.residuals):
            mean = self.residuals[name].clone()
            if world > 1:
                mean /= world
                with answered(group, "residuals"):
                    dist.all_reduce(mean, group=group)
            found[name] = mean
        return found


def merged(residuals: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several ranks' residuals."""
    names = sorted({name for one in residuals for name in one})
    return {
        name: torch.stack([one[name] for one in residuals if name in one]).sum(0)
        / len(residuals)
        for name in names
    }
