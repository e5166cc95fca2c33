"""What is kept of a tensor, and the ways to get it back.

A `Slot` holds one tensor's values, packed or as they are. A `Source` gives a tensor when
backward asks: straight from a slot, from a slot through an element-wise function, or from
nothing but a shape. Several ops may share a slot and each have a source of their own.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from encke.bound import Lossless
from encke.codec import Packed, compress, layout
from encke.codec.unsettled import Unsettled
from encke.ops.select import select
from encke.tape.channels import Channels
from encke.tape.lane import Parcel
from encke.tape.ledger import Held, Ledger
from encke.tape.offload import Spooled
from encke.tape.protocol import Site


class Recent:
    """Decoded tensors that another op is about to ask for: at most a few at a time."""

    def __init__(self, most: int = 3) -> None:
        self._most = most
        self._tensors: OrderedDict[int, tuple[weakref.ref[Slot], Tensor]] = OrderedDict()

    def get(self, slot: Slot) -> Tensor | None:
        found = self._tensors.get(id(slot))
        return found[1] if found is not None and found[0]() is slot else None

    def put(self, slot: Slot, value: Tensor) -> None:
        key = id(slot)
        self._tensors[key] = (
            weakref.ref(slot, lambda _: self._tensors.pop(key, None)),
            value,
        )
        while len(self._tensors) > self._most:
            self._tensors.popitem(last=False)

    def drop(self, slot: Slot) -> None:
        self._tensors.pop(id(slot), None)

    def clear(self) -> None:
        self._tensors.clear()


class Slot:
    """One tensor's values. `error` is zero where they are exact.

    With `channels`, what is packed and what `error` is about are the normalised values.
    """

    __slots__ = (
        "__weakref__",
        "_exact",
        "_held",
        "_packed",
        "_recent",
        "channels",
        "check",
        "checked",
        "codec",
        "error",
        "exact_zeros",
        "nbytes",
        "noise",
        "observed",
        "pending",
        "site",
        "values",
        "why",
    )

    def __init__(self, site: Site, *, recent: Recent) -> None:
        self.site = site
        self._recent = recent
        self._packed: Packed | Spooled | Parcel | Unsettled | None = None
        self._exact: Tensor | None = None
        self._held: Held | None = None
        self.channels: Channels | None = None
        self.error = 0.0
        self.exact_zeros = False
        self.codec = ""
        self.why = ""
        self.nbytes = 0
        self.values = 0
        #: Sources that have yet to ask for the values in this backward.
        self.pending = 0
        #: The exact tensor, kept beside for a comparison of gradients.
        self.check: Tensor | None = None
        self.checked: Held | None = None
        #: Whether its effect on gradients is measured in backward.
        self.observed = False
        #: Set during a probe: what to hand out in place of the decoded values.
        self.noise: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def exact(
        cls, site: Site, t: Tensor, held: Held | None, *, recent: Recent, why: str
    ) -> Slot:
        """The tensor itself, pinned."""
        slot = cls(site, recent=recent)
        slot._exact = t.detach()
        slot._held = held
        slot.codec, slot.why = "exact", why
        slot.nbytes = t.numel() * t.element_size()
        slot.values = t.numel()
        slot.exact_zeros = True
        return slot

    @classmethod
    def packed(
        cls,
        site: Site,
        packed: Packed | Parcel | Unsettled,
        ledger: Ledger,
        *,
        recent: Recent,
        offload: bool = False,
    ) -> Slot:
        slot = cls(site, recent=recent)
        slot._packed = packed
        stored = packed.nbytes
        if isinstance(packed, Parcel):  # a lane has moved it already, if it is to be moved
            packed = packed.packed
        elif isinstance(packed, Unsettled):
            packed.told = _Resize(slot, ledger)
            packed = packed.about
        elif offload:
            slot._packed, stored = Spooled(packed), 0
        slot._held = Held(ledger, stored)
        slot.codec, slot.why = packed.codec, packed.why
        slot.nbytes = stored
        slot.values = packed.plain_nbytes // packed.dtype.itemsize
        slot.error = 0.0 if isinstance(packed.bound, Lossless) else packed.promised
        return slot

    @property
    def kind(self) -> str:
        """exact, lossless or lossy."""
        if self._exact is not None:
            return "exact"
        return "lossless" if self.is_exact else "lossy"

    @property
    def is_exact(self) -> bool:
        return self.error == 0.0

    def value(self) -> Tensor:
        """The values: decoded, within the bound; during a probe, what the probe wants."""
        if self.noise is not None:
            return self.noise(self.decoded())
        if self._exact is not None:
            return self._exact
        found = self._recent.get(self)
        if found is None:
            found = self.decoded()
        self.pending -= 1
        if self.pending > 0:
            self._recent.put(self, found)
        else:
            self._recent.drop(self)
        return found

    def decoded(self) -> Tensor:
        """The values as backward will see them; looking does not count as a use."""
        if self._exact is not None:
            return self._exact
        assert self._packed is not None
        decoded = self._packed.decompress()
        return decoded if self.channels is None else self.channels.restore(decoded)

    def deviation(self, exact: Tensor) -> Tensor:
        """Decoded less exact values, in the units of `error` and in double precision."""
        if self.channels is None or self._packed is None:
            return self.decoded().double() - exact.double()
        normal = self.channels.normalise(exact)
        return self._packed.decompress().double() - normal.double()


class _Resize:
    """Tells a slot how long its bytes have become, if it lives still."""

    __slots__ = ("_ledger", "_slot")

    def __init__(self, slot: Slot, ledger: Ledger) -> None:
        self._slot, self._ledger = weakref.ref(slot), ledger

    def __call__(self, packed: Packed) -> None:
        slot = self._slot()
        if slot is not None:
            slot._packed, slot.nbytes = packed, packed.nbytes
            slot._held = Held(self._ledger, packed.nbytes)


class Source(ABC):
    """Where the tensor that backward asks for comes from."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> Tensor: ...

    def slots(self) -> Iterator[Slot]:
        """The slots whose error is in what `get` returns."""
        return iter(())

    #: How it is kept, in a word.
    how = ""


class Whole(Source):
    """A slot's tensor as it is."""

    __slots__ = ("slot",)
    how = "stored"

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        slot.pending += 1

    def again(self) -> tuple[Slot]:
        """The arguments that make another source of the same."""
        return (self.slot,)

    def get(self) -> Tensor:
        return self.slot.value()

    def slots(self) -> Iterator[Slot]:
        yield self.slot


class Window(Source):
    """A view into a slot's tensor: other sizes and strides over the same memory."""

    __slots__ = ("_geometry", "slot")
    how = "shared"

    def __init__(
        self, slot: Slot, size: tuple[int, ...], stride: tuple[int, ...], offset: int
    ) -> None:
        self.slot = slot
        self._geometry = size, stride, offset
        slot.pending += 1

    def again(self) -> tuple[Slot, tuple[int, ...], tuple[int, ...], int]:
        return (self.slot, *self._geometry)

    def get(self) -> Tensor:
        value = self.slot.value()
        size, stride, offset = self._geometry
        return value.as_strided(size, stride, value.storage_offset() + offset)

    def slots(self) -> Iterator[Slot]:
        yield self.slot


class Shape(Source):
    """A tensor of which only the shape matters: one zero, expanded."""

    __slots__ = ("_like",)
    how = "shape"

    def __init__(self, t: Tensor) -> None:
        self._like = (tuple(t.shape), t.dtype, t.device)

    def get(self) -> Tensor:
        shape, dtype, device = self._like
        return torch.zeros((), dtype=dtype, device=device).expand(shape)


class Sides(Source):
    """Which side of a threshold each value lies on: one bit each, or the zeros of a slot.

    `get` gives a tensor with one number for each side. Where the values themselves come to
    be kept, with exact zeros, `follow` lets the bits go.
    """

    __slots__ = (
        "__weakref__",
        "_bits",
        "_dtype",
        "_held",
        "_shape",
        "_sides",
        "_slot",
        "order",
        "site",
    )
    how = "mask"

    def __init__(
        self,
        site: Site,
        t: Tensor,
        sides: tuple[float, float],
        ledger: Ledger,
        *,
        mask: Tensor | None = None,
    ) -> None:
        """The sides of `t`: of zero, unless a `mask` is given."""
        self.site = site
        self.order = layout.memory_order(t)
        self._shape = tuple(t.shape[d] for d in self.order)
        kernels = select(t.device)
        if mask is None:
            self._bits: Tensor | None = kernels.positive_encode(layout.to_memory(t, self.order))
        else:
            self._bits = kernels.mask_encode(layout.to_memory(mask, self.order))
        self._held: Held | None = Held(ledger, self._bits.numel())
        self._dtype, self._sides = t.dtype, sides
        self._slot: Source | None = None

    @property
    def bits(self) -> Tensor | None:
        """One bit a value in memory order; None where the zeros of a slot tell."""
        return self._bits

    @property
    def nbytes(self) -> int:
        return self._bits.numel() if self._bits is not None else 0

    def follow(self, values: Source) -> None:
        """From now on the zeros of `values`, which are exact, tell the sides."""
        self._slot, self._bits, self._held = values, None, None

    def mask(self) -> Tensor:
        if self._bits is None:
            assert self._slot is not None
            # Not a sign: an error may take a small positive value below zero.
            return self._slot.get() != 0
        kernels = select(self._bits.device)
        flat = kernels.mask_decode(self._bits, math.prod(self._shape))
        return layout.from_memory(flat.view(self._shape), self.order)

    def get(self) -> Tensor:
        one, other = self._sides
        if self._bits is not None and (one, other) == (1.0, 0.0):
            kernels = select(self._bits.device)
            flat = kernels.positive_decode(self._bits, math.prod(self._shape), self._dtype)
            return layout.from_memory(flat.view(self._shape), self.order)
        if self._slot is not None and (one, other) == (1.0, 0.0):
            # ReLU's backward asks what is positive: the magnitude tells, in a single pass.
            return self._slot.get().abs()
        mask = self.mask()
        if (one, other) == (1.0, 0.0):
            return mask.to(self._dtype)
        high, low = torch.tensor([one, other], dtype=self._dtype, device=mask.device)
        return torch.where(mask, high, low)


class TwoValued(Source):
    """A tensor of zeros and one other value, as a dropout's noise."""

    __slots__ = ("_bits", "_dtype", "_held", "_scale")
    how = "mask"

    def __init__(self, t: Tensor, scale: float, ledger: Ledger) -> None:
        self._bits = compress(t != 0, Lossless(), codec="mask")
        self._held = Held(ledger, self._bits.nbytes)
        self._dtype, self._scale = t.dtype, scale

    @property
    def nbytes(self) -> int:
        return self._bits.nbytes

    def get(self) -> Tensor:
        return self._bits.decompress().to(self._dtype).mul_(self._scale)


class Integers(Source):
    """Integers or truth values, narrowed without loss; `restore` undoes a change of form."""

    __slots__ = ("_dtype", "_held", "_packed", "_restore")
    how = "index"

    def __init__(
        self,
        t: Tensor,
        ledger: Ledger,
        *,
        dtype: torch.dtype | None = None,
        restore: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        codec = "mask" if t.dtype == torch.bool else "index"
        self._packed = compress(t, Lossless(), codec=codec)
        self._held = Held(ledger, self._packed.nbytes)
        self._dtype, self._restore = dtype or t.dtype, restore

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes

    def get(self) -> Tensor:
        value = self._packed.decompress()
        return (self._restore(value) if self._restore else value).to(self._dtype)


class Derived(Source):
    """A tensor computed from another source when it is asked for."""

    __slots__ = ("_compute", "_of", "how")

    def __init__(self, of: Source, compute: Callable[[Tensor], Tensor], how: str) -> None:
        self._of, self._compute, self.how = of, compute, how

    def get(self) -> Tensor:
        return self._compute(self._of.get())

    def slots(self) -> Iterator[Slot]:
        return self._of.slots()
