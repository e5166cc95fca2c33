"""One kept tensor's values: packed, or pinned as they are; and those decoded just now."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from encke.bound import Lossless
from encke.codec import Packed
from encke.codec.unsettled import Unsettled
from encke.tape.autograd.version_check import check_version
from encke.tape.batch_norm.channels import Channels
from encke.tape.effects.rows import ExactRows
from encke.tape.policy import Site
from encke.tape.storage.byte_count import ByteCount, StoredBytes, WaitingBytes
from encke.tape.transfer.side_stream import TransferredTensor
from encke.tape.transfer.spill import Spooled

if TYPE_CHECKING:
    from encke.tape.batch_norm.masked import BatchNormMask, ReluOutputMask
    from encke.tape.batch_norm.residual import ResidualNorm


class DecodedCache:
    """Decoded tensors that another op is about to ask for: at most a few at a time.

    order  of the op in the forward pass that is now being kept for. What an op many places
           earlier will ask for is decoded anew then: in a ResNet the shortcut and the branch
           share their input, and between the two lies the backward pass of a whole block.
    """

    def __init__(self, most: int = 3, near: int = 4) -> None:
        self._most, self._near = most, near
        self.order = 0
        self._tensors: OrderedDict[int, tuple[weakref.ref[StoredTensor], Tensor]] = (
            OrderedDict()
        )

    def get(self, slot: StoredTensor) -> Tensor | None:
        found = self._tensors.get(id(slot))
        return found[1] if found is not None and found[0]() is slot else None

    def put(self, slot: StoredTensor, value: Tensor) -> None:
        key = id(slot)
        self._tensors[key] = (
            weakref.ref(slot, lambda _: self._tensors.pop(key, None)),
            value,
        )
        while len(self._tensors) > self._most:
            self._tensors.popitem(last=False)

    def drop(self, slot: StoredTensor) -> None:
        self._tensors.pop(id(slot), None)

    def soon(self, order: int, following: int) -> bool:
        """Whether the op in place `following` is asked soon after the one in place `order`."""
        return order - following <= self._near

    def clear(self) -> None:
        self._tensors.clear()


class StoredTensor:
    """One tensor's values. `error` is zero where they are exact.

    With `channels`, what is packed and what `error` is about are the normalised values; with a
    `gate`, those that it lets through.
    """

    __slots__ = (
        "__weakref__",
        "_asked_by",
        "_exact",
        "_held",
        "_packed",
        "_recent",
        "_version",
        "channels",
        "check",
        "codec",
        "error",
        "exact_zeros",
        "gate",
        "nbytes",
        "noise",
        "observed",
        "probed",
        "remainder",
        "site",
        "values",
        "why",
    )

    def __init__(self, site: Site, *, recent: DecodedCache) -> None:
        self.site = site
        self._recent = recent
        self._packed: Packed | Spooled | TransferredTensor | Unsettled | _Changed | None = None
        self._exact: Tensor | None = None
        self._version = 0
        self._held: StoredBytes | WaitingBytes | None = None
        self.channels: Channels | None = None
        self.gate: BatchNormMask | ReluOutputMask | None = None
        #: Where its values follow from those of other slots, in place of anything packed.
        self.remainder: ResidualNorm | None = None
        self.error = 0.0
        self.exact_zeros = False
        self.codec = ""
        self.why = ""
        self.nbytes = 0
        self.values = 0
        #: Places in the forward pass of the ops that will ask for the values in backward.
        self._asked_by: list[int] = []
        #: Exact rows, kept beside for a comparison of gradients.
        self.check: ExactRows | None = None
        #: Whether its effect on gradients is measured in backward.
        self.observed = False
        #: Whether ops that use it may be called again for that.
        self.probed = True
        #: Set during a probe: gives what is handed out in place of the decoded values, which
        #: it gets from the function that it is called with.
        self.noise: Callable[[Callable[[], Tensor]], Tensor] | None = None

    @classmethod
    def exact(
        cls,
        site: Site,
        t: Tensor,
        held: StoredBytes | WaitingBytes | None,
        *,
        recent: DecodedCache,
        why: str,
    ) -> StoredTensor:
        """The tensor itself, pinned."""
        slot = cls(site, recent=recent)
        slot._exact, slot._version = t.detach(), t._version
        slot._held = held
        slot.codec, slot.why = "exact", why
        slot.nbytes = t.numel() * t.element_size()
        slot.values = t.numel()
        slot.exact_zeros = True
        return slot

    def fill(
        self,
        packed: Packed | TransferredTensor | Unsettled,
        ledger: ByteCount,
        *,
        offload: bool = False,
    ) -> None:
        """Hold this from now on, in place of whatever was held."""
        self._exact, self._packed = None, packed
        stored = packed.nbytes
        if isinstance(
            packed, TransferredTensor
        ):  # a lane has moved it already, if it is to be moved
            packed = packed.packed
        elif isinstance(packed, Unsettled):
            packed.told = _Resize(self, ledger)
            packed = packed.about
        elif offload:
            self._packed, stored = Spooled(packed), 0
        self._held = StoredBytes(ledger, stored)
        self.codec, self.why = packed.codec, packed.why
        self.nbytes = stored
        self.values = packed.plain_nbytes // packed.dtype.itemsize
        self.error = 0.0 if isinstance(packed.bound, Lossless) else packed.promised

    def follow(self, remainder: ResidualNorm) -> None:
        """Hold nothing from now on: other slots tell."""
        self._exact = self._packed = self._held = None
        self.remainder = remainder
        self.codec, self.nbytes, self.values = "", 0, 0

    def origins(self) -> Iterator[StoredTensor]:
        """The slots whose errors are in the values: itself, unless it follows others."""
        return iter((self,)) if self.remainder is None else self.remainder.slots()

    @property
    def kind(self) -> str:
        """exact, lossless or lossy."""
        if self._exact is not None:
            return "exact"
        return "lossless" if self.is_exact else "lossy"

    @property
    def waits(self) -> bool:
        """Whether it is held as it is only until it is known how to pack it."""
        return isinstance(self._held, WaitingBytes)

    @property
    def is_shared(self) -> bool:
        """Whether more than one op will ask for the values."""
        return len(self._asked_by) > 1

    @property
    def is_exact(self) -> bool:
        return self.error == 0.0

    def value(self) -> Tensor:
        """The values: decoded, within the bound; during a probe, what the probe wants."""
        if self.noise is not None:
            return self.noise(self.decoded)
        if self._exact is not None:
            check_version(self._exact, self._version, self.site)
            return self._exact
        if self.remainder is not None and self.remainder.is_probed():
            return self._whole(self.remainder.values())
        return self._whole(self._asked())

    def passed(self, gain: Tensor, shift: Tensor) -> Tensor:
        """What `value` would be asked for, but x̂ · gain + shift where the gate lets x̂ through,
        and zero elsewhere."""
        assert self.gate is not None
        return self.gate.open_as(self._asked(), gain, shift, torch.zeros_like(shift))

    def values_that_pass(self) -> Tensor:
        """What a gate lets through, normalised: the last that is asked of it."""
        return self._asked()

    def _asked(self) -> Tensor:
        """What is packed, for the next op that asks; remembered if another will soon."""
        found = self._recent.get(self)
        if found is None:
            found = self._unpacked()
        order = self._asked_by.pop() if self._asked_by else 0
        if self._asked_by and self._recent.soon(order, self._asked_by[-1]):
            self._recent.put(self, found)
        else:
            self._recent.drop(self)
        return found

    def remembers(self, t: Tensor) -> bool:
        """Whether the memory of `t` is what is remembered for the next that asks."""
        found = self._recent.get(self)
        return (
            found is not None and found.untyped_storage()._cdata == t.untyped_storage()._cdata
        )

    @contextmanager
    def looked_at(self, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Inside, what is unpacked goes through `change`, and no use of it is counted."""
        packed, asked_by = self._packed, list(self._asked_by)
        if packed is not None:
            self._packed = _Changed(packed, change)
        self._recent.drop(self)
        try:
            yield
        finally:
            self._packed, self._asked_by = packed, asked_by
            self._recent.drop(self)

    def will_be_asked(self) -> None:
        """The op that is now being kept for will want the values."""
        self._asked_by.append(self._recent.order)

    def will_be_asked_last(self) -> None:
        """The op that asks first in forward order will ask once more, after all others."""
        self._asked_by.insert(0, self._asked_by[0])

    def decoded(self) -> Tensor:
        """The values as backward will see them; looking does not count as a use."""
        if self._exact is not None:
            return self._exact
        return self._whole(self._unpacked())

    def _unpacked(self) -> Tensor:
        """The values, of a gate's those that pass."""
        if self.remainder is not None:
            return self.remainder.values()
        assert self._packed is not None
        decoded = self._packed.decompress()
        if self.gate is not None or self.channels is None:
            return decoded
        return self.channels.restore(decoded)

    def _whole(self, unpacked: Tensor) -> Tensor:
        return unpacked if self.gate is None else self.gate.open(unpacked)

    def deviation(self, exact: Tensor) -> Tensor:
        """Decoded less exact values, in the units of `error` and in double precision."""
        if self.channels is None or self._packed is None:
            return self.decoded().double() - exact.double()
        if self.gate is not None:
            normal = self.gate.close(exact)
        else:
            normal = self.channels.normalise(exact)
        return self._packed.decompress().double() - normal.double()


class _Changed:
    """Packed values that go through a function when they are unpacked."""

    __slots__ = ("_change", "_packed")

    def __init__(self, packed: Any, change: Callable[[Tensor], Tensor]) -> None:
        self._packed, self._change = packed, change

    def decompress(self) -> Tensor:
        return self._change(self._packed.decompress())


class _Resize:
    """Tells a slot how long its bytes have become, if it lives still."""

    __slots__ = ("_ledger", "_slot")

    def __init__(self, slot: StoredTensor, ledger: ByteCount) -> None:
        self._slot, self._ledger = weakref.ref(slot), ledger

    def __call__(self, packed: Packed) -> None:
        slot = self._slot()
        if slot is not None:
            slot._packed, slot.nbytes = packed, packed.nbytes
            slot._held = StoredBytes(self._ledger, packed.nbytes)
