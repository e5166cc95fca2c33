"""What autograd holds in place of a saved tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from encke.errors import EnckeError
from encke.tape.autograd.backward_kernels import can_lend, lend
from encke.tape.autograd.backward_passes import BackwardPasses
from encke.tape.autograd.version_check import VersionCheck
from encke.tape.batch_norm.channels import NORMS
from encke.tape.cost.pace import now
from encke.tape.policy import Site
from encke.tape.storage.byte_count import SavedStorage
from encke.tape.storage.sharing import is_dense, overlaps
from encke.tape.storage.sources import (
    CombinedSource,
    RecomputedSource,
    SignMask,
    StoredSource,
    TensorSource,
)

#: Ops whose backward can use the memory of what they are given.
_BORROWERS = frozenset(
    [("Relu", "result"), ("Convolution", "input"), *((op, "input") for op in NORMS)]
)


def _can_be_lent(t: Tensor) -> bool:
    return t.device.type == "cpu" and t.dtype == torch.float32


class Handle:
    """Gives the tensor back, and makes sure that it is the one that was saved.

    Hooks drop two of autograd's own checks: that the tensor was not changed in place since,
    and that what comes back has its shape. Both are made here.
    """

    __slots__ = (
        "_device",
        "_dtype",
        "_lends",
        "_order",
        "_passes",
        "_storage",
        "_stride",
        "_witness",
        "shape",
        "site",
        "source",
    )

    def __init__(
        self,
        source: TensorSource,
        site: Site,
        t: Tensor,
        storage: SavedStorage,
        passes: BackwardPasses,
        *,
        order: int = 0,
    ) -> None:
        self.source, self.site = source, site
        self._passes, self._order = passes, order
        self.shape = tuple(t.shape)
        self._stride = t.stride() if is_dense(t) or self._is_exact(t) else None
        self._dtype, self._device = t.dtype, t.device
        self._witness = VersionCheck(t)
        self._lends = (site.op, site.role) in _BORROWERS and _can_be_lent(t)
        self._storage = storage

    def _is_exact(self, t: Tensor) -> bool:
        """Whether every bit counts: kernels round differently where there are gaps."""
        slots = list(self.source.slots())
        return bool(slots) and all(s.is_exact for s in slots) and not overlaps(t)

    def get(self) -> Tensor:
        began = now()
        self._passes.notice(self._order)
        t = self._checked()
        self._passes.gave(self.site, began)
        return t

    def _checked(self) -> Tensor:
        self._witness.check(self.site, self.shape)
        # While a graph of backward itself is built, its nodes save what they are given.
        lends = self._lends and not torch.is_grad_enabled() and can_lend()
        if not torch.is_grad_enabled():
            return self._decoded(lends)
        with torch.no_grad():
            return self._decoded(lends)

    def _decoded(self, lends: bool) -> Tensor:
        if lends and isinstance(self.source, SignMask):
            return self.source.stand_in()
        t = self.source.get()
        if self.source.how == "shape":
            return t
        if t.dtype != self._dtype:
            t = t.to(self._dtype)
        if t.shape != self.shape or t.device != self._device:
            raise EnckeError(
                f"{self.site}: saved {list(self.shape)} on {self._device}, got back "
                f"{list(t.shape)} on {t.device}; this is a fault of the rule for this op"
            )
        if self._stride is not None and t.stride() != self._stride:
            t = torch.empty_strided(
                self.shape, self._stride, dtype=t.dtype, device=t.device
            ).copy_(t)
            if lends:
                lend(t)
        elif lends and self._is_alone(t):
            lend(t)
        return t

    def _is_alone(self, t: Tensor) -> bool:
        """Whether nobody else will ever look at the memory of `t`."""
        if not isinstance(self.source, StoredSource | RecomputedSource | CombinedSource):
            return False
        slots = list(self.source.slots())
        return (
            bool(slots)
            and not any(slot.is_exact for slot in slots)
            and not any(slot.remembers(t) for slot in slots)
        )
