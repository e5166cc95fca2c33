"""All lazy tensors of one call of F.linear, which are computed together."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from encke.errors import StaleLogitsError
from encke.head.lazy_nodes import Materialised, linear

if TYPE_CHECKING:
    from encke.head.lazy import LazyLogits

#: How many values of each input are remembered to notice a change that no version tells of.
SAMPLE = 4096

#: Those that have not been computed.
waiting: weakref.WeakSet[Family] = weakref.WeakSet()


class Family:
    """What lazy logits are computed from, and the tensors made from them.

    Only lazy tensors hold it: with the last of them it goes, and nothing was computed.

    root   the node of the linear layer
    dtype  of its products
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        dtype: torch.dtype,
        root: Any,
    ) -> None:
        self.hidden, self.weight, self.bias = hidden, weight, bias
        self.dtype, self.root = dtype, root
        self.members: list[weakref.ref[LazyLogits]] = []
        #: Whether a loss was computed without values, and whether there are values.
        self.fused = self.is_computed = False
        self._values: Tensor | None = None
        self._marks = [_Mark(t) for _, t in self._inputs()]
        watch_optimizers()
        waiting.add(self)

    def _inputs(self) -> list[tuple[str, Tensor]]:
        named = (("hidden states", self.hidden), ("weight", self.weight), ("bias", self.bias))
        return [(name, t) for name, t in named if t is not None]

    def change(self) -> str | None:
        """The input that was changed since; None if all are as they were."""
        for mark, (name, t) in zip(self._marks, self._inputs(), strict=True):
            if mark.differs(t):
                return name
        return None

    def values(self) -> Tensor:
        """The logits without a history."""
        if self._values is None:
            changed = self.change()
            if changed is not None:
                raise StaleLogitsError(
                    f"logits were used for the first time after the {changed} of the head had "
                    "changed: Encke computes them when they are used. Use them before "
                    "the weights change, or `logits.clone()` them there"
                )
            with torch.no_grad():
                self._values = linear(self.hidden, self.weight, self.bias, self.dtype).detach()
        return self._values

    def compute(self) -> None:
        """Give every tensor that is still there its values, in the order they were made.

        So they share memory, or do not, as they would have.
        """
        members = [m for m in (ref() for ref in self.members) if m is not None]
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(_same, _same),
        ):
            for member in members:
                self._compute(member)
        self.is_computed = True
        self._values = None
        waiting.discard(self)

    def _compute(self, member: LazyLogits) -> Tensor:
        if member.ordinary is None:
            if member.parent is None:
                member.ordinary = Materialised.apply(member, self)  # type: ignore[no-untyped-call]
            else:
                member.ordinary = member.path[-1](self._compute(member.parent))
        real: Tensor = member.ordinary
        return real


def _same(t: Tensor) -> Tensor:
    return t


class _Mark:
    """Version and some values of a tensor, to notice that it was changed.

    `p.data.add_(...)` changes values and no version.
    """

    def __init__(self, t: Tensor) -> None:
        self._version = t._version
        self._sample = _sample(t)

    def differs(self, t: Tensor) -> bool:
        return t._version != self._version or not torch.equal(_sample(t), self._sample)


def _sample(t: Tensor) -> Tensor:
    flat = t.detach().reshape(-1) if t.is_contiguous() else t.detach()[..., 0].reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)].contiguous().view(torch.uint8).clone()


_watching = False


def watch_optimizers() -> None:
    """Have logits that may still be used computed before an optimizer changes the weights."""
    global _watching
    if not _watching:
        register_optimizer_step_pre_hook(_before_step)
        _watching = True


def _before_step(*_: Any) -> None:
    from encke.head.liveness import may_be_read

    for family in list(waiting):
        members = [m for m in (ref() for ref in family.members) if m is not None]
        if members and family.change() is None and may_be_read(members):
            del members
            family.compute()
