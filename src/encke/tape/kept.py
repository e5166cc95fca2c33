"""The ways to get a tensor back.

A slot holds one tensor's values, packed or as they are. A `Source` gives a tensor when
backward asks: straight from a slot, from a slot through an element-wise function, or from
nothing but a shape. Several ops may share a slot and each have a source of their own.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from encke.bound import Lossless
from encke.codec import compress, layout
from encke.ops.select import select
from encke.tape.ledger import Held, Ledger
from encke.tape.protocol import Site
from encke.tape.slot import Slot
from encke.tape.tight import Tight
from encke.tape.witness import check_version


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
    #: How many ops on whole tensors it takes to compute it from what is stored.
    steps = 0


class Whole(Source):
    """A slot's tensor as it is."""

    __slots__ = ("slot",)
    how = "stored"

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        slot.will_be_asked()

    def again(self) -> tuple[Slot]:
        """The arguments that make another source of the same."""
        return (self.slot,)

    def get(self) -> Tensor:
        return self.slot.value()

    def slots(self) -> Iterator[Slot]:
        return self.slot.origins()


class Window(Source):
    """A view into a slot's tensor: other sizes and strides over the same memory."""

    __slots__ = ("_geometry", "slot")
    how = "shared"

    def __init__(
        self, slot: Slot, size: tuple[int, ...], stride: tuple[int, ...], offset: int
    ) -> None:
        self.slot = slot
        self._geometry = size, stride, offset
        slot.will_be_asked()

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
        "_again",
        "_held",
        "_known",
        "_shape",
        "_sides",
        "_tight",
        "_values",
        "device",
        "dtype",
        "gates",
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
        self.device = t.device
        #: Whether something else is kept only where these bits are set: see `tape.gate`.
        self.gates = False
        self.order = layout.memory_order(t)
        self._shape = tuple(t.shape[d] for d in self.order)
        kernels = select(t.device)
        if mask is None:
            bits = kernels.positive_encode(layout.to_memory(t, self.order))
        else:
            bits = kernels.mask_encode(layout.to_memory(mask, self.order))
        self._tight: Tight | None = Tight(bits)
        self._held: Held | None = Held(ledger, self._tight.nbytes)
        self.dtype, self._sides = t.dtype, sides
        self._values: Source | None = None
        self._known: weakref.ref[Slot] | None = None
        #: The bits as they are: while what goes with them is packed (see `settle`), and again
        #: from the first backward that asks for them to the last.
        self._again: Tensor | None = bits

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values."""
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return tuple(self._shape[place] for place in inverse)

    @property
    def bits(self) -> Tensor | None:
        """One bit a value in memory order; None where the zeros of a slot tell."""
        if self._again is not None:
            return self._again
        return self._tight.get() if self._tight is not None else None

    @property
    def has_bits(self) -> bool:
        return self._tight is not None

    @property
    def nbytes(self) -> int:
        return self._tight.nbytes if self._tight is not None else 0

    @property
    def slot(self) -> Slot | None:
        """The slot that has the values of this very tensor, if one does."""
        return self._known() if self._known is not None else None

    def known_to(self, slot: Slot) -> None:
        """The values are in `slot`; the sides stay here."""
        self._known = weakref.ref(slot)

    def settle(self) -> None:
        """Let go of the bits as they are: nothing more is packed by them."""
        self._again = None

    def follow(self, values: Whole) -> None:
        """From now on the zeros of `values`, which are exact, tell the sides."""
        self._values, self._tight, self._held = values, None, None
        self._again = None
        self.known_to(values.slot)

    def gate_bits(self) -> Tensor:
        """The bits in memory order, wherever they come from; in backward, where others will
        ask for them too."""
        if self._again is None:
            bits = self.bits
            if bits is None:
                memory = layout.to_memory(self.mask(), self.order)
                bits = select(self.device).mask_encode(memory)
            self._again = bits
        return self._again

    def mask(self) -> Tensor:
        bits = self.bits
        if bits is None:
            assert self._values is not None
            # Not a sign: an error may take a small positive value below zero.
            return self._values.get() != 0
        flat = select(bits.device).mask_decode(bits, math.prod(self._shape))
        return layout.from_memory(flat.view(self._shape), self.order)

    def get(self) -> Tensor:
        one, other = self._sides
        if (one, other) == (1.0, 0.0):
            return self._ones()
        mask = self.mask()
        high, low = torch.tensor([one, other], dtype=self.dtype, device=mask.device)
        return torch.where(mask, high, low)

    def _ones(self) -> Tensor:
        """Something positive where the sides say so: what ReLU's backward asks for."""
        bits = self.gate_bits() if self.gates and self._tight is not None else self.bits
        if bits is not None:
            flat = select(bits.device).positive_decode(bits, math.prod(self._shape), self.dtype)
            return layout.from_memory(flat.view(self._shape), self.order)
        assert self._values is not None
        magnitude = self._values.get().abs()  # the magnitude tells, in a single pass
        if self.gates:
            memory = layout.to_memory(magnitude, self.order)
            self._again = select(magnitude.device).positive_encode(memory)
        return magnitude


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
        bits = self._bits.decompress()
        if math.isfinite(self._scale):
            return bits.to(self._dtype).mul_(self._scale)
        return torch.zeros_like(bits, dtype=self._dtype).masked_fill_(bits, self._scale)


class Integers(Source):
    """Integers or truth values, narrowed without loss; `restore` undoes a change of form."""

    __slots__ = ("_about", "_dtype", "_held", "_restore", "_tight", "nbytes")
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
        packed = compress(t, Lossless(), codec=codec)
        self._tight = Tight(packed.payload)
        self._about = replace(packed, payload=packed.payload[:0])
        self.nbytes = self._about.nbytes + self._tight.nbytes
        self._held = Held(ledger, self.nbytes)
        self._dtype, self._restore = dtype or t.dtype, restore

    def get(self) -> Tensor:
        value = replace(self._about, payload=self._tight.get()).decompress()
        return (self._restore(value) if self._restore else value).to(self._dtype)


class Derived(Source):
    """A tensor computed from another source when it is asked for."""

    __slots__ = ("_compute", "_of", "how", "steps")

    def __init__(self, of: Source, compute: Callable[[Tensor], Tensor], how: str) -> None:
        self._of, self._compute, self.how = of, compute, how
        self.steps = of.steps + 1

    def get(self) -> Tensor:
        return self._compute(self._of.get())

    def slots(self) -> Iterator[Slot]:
        return self._of.slots()


class Combined(Source):
    """A tensor computed from several sources when it is asked for."""

    __slots__ = ("_compute", "_of", "how", "steps")

    def __init__(self, of: Sequence[Source], compute: Callable[..., Tensor], how: str) -> None:
        self._of, self._compute, self.how = tuple(of), compute, how
        self.steps = sum(one.steps for one in of) + 1

    def get(self) -> Tensor:
        return self._compute(*(one.get() for one in self._of))

    def slots(self) -> Iterator[Slot]:
        """Each once, the largest first."""
        found = {id(slot): slot for one in self._of for slot in one.slots()}
        return iter(sorted(found.values(), key=lambda slot: -slot.values))


class Unstored(Source):
    """A tensor that is alive whatever the tape does: a parameter or a buffer."""

    __slots__ = ("_name", "_tensor", "_version")
    how = "parameter"

    def __init__(self, t: Tensor, name: str) -> None:
        self._tensor, self._version, self._name = t.detach(), t._version, name

    def get(self) -> Tensor:
        check_version(self._tensor, self._version, self._name)
        return self._tensor
