"""The ways to get a tensor back.

A slot holds one tensor's values, packed or as they are. A `Source` gives a tensor when
backward asks: straight from a slot, from a slot through an element-wise function, or from
nothing but a shape. Several ops may share a slot and each have a source of their own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from encke.bound import Lossless
from encke.codec import compress, layout
from encke.ops.select import select
from encke.tape.ledger import Held, Ledger
from encke.tape.protocol import Site
from encke.tape.slot import Slot


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
        slot.will_be_asked()

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
        "_bits",
        "_dtype",
        "_held",
        "_shape",
        "_sides",
        "_slot",
        "device",
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
            self._bits: Tensor | None = kernels.positive_encode(layout.to_memory(t, self.order))
        else:
            self._bits = kernels.mask_encode(layout.to_memory(mask, self.order))
        self._held: Held | None = Held(ledger, self._bits.numel())
        self._dtype, self._sides = t.dtype, sides
        self._slot: Source | None = None
        #: The bits once more, for a gate: from the ReLU's backward to that of what it gates.
        self._again: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values."""
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return tuple(self._shape[place] for place in inverse)

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

    def gate_bits(self) -> Tensor:
        """The bits in memory order, wherever they come from."""
        if self._bits is not None:
            return self._bits
        if self._again is None:
            self._again = select(self.device).mask_encode(
                layout.to_memory(self.mask(), self.order)
            )
        return self._again

    def mask(self) -> Tensor:
        if self._again is not None:
            flat = select(self._again.device).mask_decode(self._again, math.prod(self._shape))
            return layout.from_memory(flat.view(self._shape), self.order)
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
            magnitude = self._slot.get().abs()
            if self.gates:
                memory = layout.to_memory(magnitude, self.order)
                self._again = select(magnitude.device).positive_encode(memory)
            return magnitude
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
