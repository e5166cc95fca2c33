"""The ways to get a tensor back.

A slot holds one tensor's values, packed or as they are. A `TensorSource` gives a tensor when
backward asks: straight from a slot, from a slot through an element-wise function, or from
nothing but a shape. Several ops may share a slot and each have a source of their own.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from encke.bound import Lossless
from encke.codec import compress, layout
from encke.ops.select import select
from encke.tape.autograd.backward_kernels import stand_in
from encke.tape.autograd.version_check import check_version
from encke.tape.policy import Site
from encke.tape.storage.byte_count import ByteCount, StoredBytes
from encke.tape.storage.stored_tensor import StoredTensor


class TensorSource(ABC):
    """Where the tensor that backward asks for comes from."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> Tensor: ...

    def slots(self) -> Iterator[StoredTensor]:
        """The slots whose error is in what `get` returns."""
        return iter(())

    #: How it is kept, in a word.
    how = ""
    #: How many ops on whole tensors it takes to compute it from what is stored.
    steps = 0


class StoredSource(TensorSource):
    """A slot's tensor as it is."""

    __slots__ = ("slot",)
    how = "stored"

    def __init__(self, slot: StoredTensor) -> None:
        self.slot = slot
        slot.will_be_asked()

    def again(self) -> tuple[StoredTensor]:
        """The arguments that make another source of the same."""
        return (self.slot,)

    def get(self) -> Tensor:
        return self.slot.value()

    def slots(self) -> Iterator[StoredTensor]:
        return self.slot.origins()


class ViewSource(TensorSource):
    """A view into a slot's tensor: other sizes and strides over the same memory."""

    __slots__ = ("_geometry", "slot")
    how = "shared"

    def __init__(
        self, slot: StoredTensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int
    ) -> None:
        self.slot = slot
        self._geometry = size, stride, offset
        slot.will_be_asked()

    def again(self) -> tuple[StoredTensor, tuple[int, ...], tuple[int, ...], int]:
        return (self.slot, *self._geometry)

    def get(self) -> Tensor:
        value = self.slot.value()
        size, stride, offset = self._geometry
        return value.as_strided(size, stride, value.storage_offset() + offset)

    def slots(self) -> Iterator[StoredTensor]:
        yield self.slot


class Shape(TensorSource):
    """A tensor of which only the shape matters: one zero, expanded."""

    __slots__ = ("_like",)
    how = "shape"

    def __init__(self, t: Tensor) -> None:
        self._like = (tuple(t.shape), t.dtype, t.device)

    def get(self) -> Tensor:
        shape, dtype, device = self._like
        return torch.zeros((), dtype=dtype, device=device).expand(shape)


class SignMask(TensorSource):
    """Which side of a threshold each value lies on: one bit each, or the zeros of a slot.

    `get` gives a tensor with one number for each side. Where the values themselves come to
    be kept, with exact zeros, `follow` lets the bits go.
    """

    __slots__ = (
        "__weakref__",
        "_again",
        "_bits",
        "_held",
        "_known",
        "_shape",
        "_sides",
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
        ledger: ByteCount,
        *,
        mask: Tensor | None = None,
    ) -> None:
        """The sides of `t`: of zero, unless a `mask` is given."""
        self.site = site
        self.device = t.device
        #: Whether something else is kept only where these bits are set: `batch_norm.masked`.
        self.gates = False
        self.order = layout.memory_order(t)
        self._shape = tuple(t.shape[d] for d in self.order)
        kernels = select(t.device)
        if mask is None:
            bits = kernels.positive_encode(layout.to_memory(t, self.order))
        else:
            bits = kernels.mask_encode(layout.to_memory(mask, self.order))
        self._bits: Tensor | None = bits
        self._held: StoredBytes | None = StoredBytes(ledger, bits.numel())
        self.dtype, self._sides = t.dtype, sides
        self._values: TensorSource | None = None
        self._known: weakref.ref[StoredTensor] | None = None
        #: The bits again, where the zeros of a slot tell them, from the first backward that
        #: asks for them to the last.
        self._again: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values."""
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return tuple(self._shape[place] for place in inverse)

    @property
    def bits(self) -> Tensor | None:
        """One bit a value in memory order; None where the zeros of a slot tell."""
        return self._again if self._bits is None else self._bits

    @property
    def has_bits(self) -> bool:
        return self._bits is not None

    @property
    def nbytes(self) -> int:
        return self._bits.numel() if self._bits is not None else 0

    @property
    def slot(self) -> StoredTensor | None:
        """The slot that has the values of this very tensor, if one does."""
        return self._known() if self._known is not None else None

    def known_to(self, slot: StoredTensor) -> None:
        """The values are in `slot`; the sides stay here."""
        self._known = weakref.ref(slot)

    def follow(self, values: StoredSource) -> None:
        """From now on the zeros of `values`, which are exact, tell the sides."""
        self._values, self._bits, self._held = values, None, None
        self.known_to(values.slot)

    def gate_bits(self) -> Tensor:
        """The bits in memory order, wherever they come from; in backward, where others will
        ask for them too."""
        bits = self.bits
        if bits is None:
            memory = layout.to_memory(self.mask(), self.order)
            bits = self._again = select(self.device).mask_encode(memory)
        return bits

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

    def stand_in(self) -> Tensor:
        """For ReLU's backward alone: no values, but `block` is called with the gradient."""
        return stand_in(self.shape, self.block)

    def block(self, gradient: Tensor) -> Tensor:
        """The gradient, and zero where the sides say so."""
        if gradient.dtype != torch.float32 or layout.memory_order(gradient) != self.order:
            zero = torch.zeros((), dtype=gradient.dtype, device=gradient.device)
            return torch.where(self.mask(), gradient, zero)
        bits = self.gate_bits()
        # x · 1 - 0 is x, the negative zero included.
        gain, shift = torch.ones(1), torch.full((1,), -0.0)
        memory = layout.to_memory(gradient, self.order)
        kernels = select(gradient.device)
        blocked = kernels.affine_where(memory, bits, gain, shift, max(1, memory.numel()))
        return layout.from_memory(blocked, self.order)

    def _ones(self) -> Tensor:
        """Something positive where the sides say so: what ReLU's backward asks for."""
        bits = self.bits
        if bits is not None:
            flat = select(bits.device).positive_decode(bits, math.prod(self._shape), self.dtype)
            return layout.from_memory(flat.view(self._shape), self.order)
        assert self._values is not None
        magnitude = self._values.get().abs()  # the magnitude tells, in a single pass
        if self.gates:
            memory = layout.to_memory(magnitude, self.order)
            self._again = select(magnitude.device).positive_encode(memory)
        return magnitude


class TwoValueMask(TensorSource):
    """A tensor of zeros and one other value, as a dropout's noise."""

    __slots__ = ("_bits", "_dtype", "_held", "_scale")
    how = "mask"

    def __init__(self, t: Tensor, scale: float, ledger: ByteCount) -> None:
        self._bits = compress(t != 0, Lossless(), codec="mask")
        self._held = StoredBytes(ledger, self._bits.nbytes)
        self._dtype, self._scale = t.dtype, scale

    @property
    def nbytes(self) -> int:
        return self._bits.nbytes

    def get(self) -> Tensor:
        bits = self._bits.decompress()
        if math.isfinite(self._scale):
            return bits.to(self._dtype).mul_(self._scale)
        return torch.zeros_like(bits, dtype=self._dtype).masked_fill_(bits, self._scale)


class Integers(TensorSource):
    """Integers or truth values, narrowed without loss; `restore` undoes a change of form."""

    __slots__ = ("_dtype", "_held", "_packed", "_restore", "nbytes")
    how = "index"

    def __init__(
        self,
        t: Tensor,
        ledger: ByteCount,
        *,
        dtype: torch.dtype | None = None,
        restore: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        codec = "mask" if t.dtype == torch.bool else "index"
        self._packed = compress(t, Lossless(), codec=codec)
        self.nbytes = self._packed.nbytes
        self._held = StoredBytes(ledger, self.nbytes)
        self._dtype, self._restore = dtype or t.dtype, restore

    def get(self) -> Tensor:
        value = self._packed.decompress()
        return (self._restore(value) if self._restore else value).to(self._dtype)


class RecomputedSource(TensorSource):
    """A tensor computed from another source when it is asked for."""

    __slots__ = ("_compute", "_of", "how", "steps")

    def __init__(self, of: TensorSource, compute: Callable[[Tensor], Tensor], how: str) -> None:
        self._of, self._compute, self.how = of, compute, how
        self.steps = of.steps + 1

    def get(self) -> Tensor:
        return self._compute(self._of.get())

    def slots(self) -> Iterator[StoredTensor]:
        return self._of.slots()


class CombinedSource(TensorSource):
    """A tensor computed from several sources when it is asked for."""

    __slots__ = ("_compute", "_of", "how", "steps")

    def __init__(
        self, of: Sequence[TensorSource], compute: Callable[..., Tensor], how: str
    ) -> None:
        self._of, self._compute, self.how = tuple(of), compute, how
        self.steps = sum(one.steps for one in of) + 1

    def get(self) -> Tensor:
        return self._compute(*(one.get() for one in self._of))

    def slots(self) -> Iterator[StoredTensor]:
        """Each once, the largest first."""
        found = {id(slot): slot for one in self._of for slot in one.slots()}
        return iter(sorted(found.values(), key=lambda slot: -slot.values))


class Unstored(TensorSource):
    """A tensor that is alive whatever the tape does: a parameter or a buffer."""

    __slots__ = ("_name", "_tensor", "_version")
    how = "parameter"

    def __init__(self, t: Tensor, name: str) -> None:
        self._tensor, self._version, self._name = t.detach(), t._version, name

    def get(self) -> Tensor:
        check_version(self._tensor, self._version, self._name)
        return self._tensor
