"""What every codec promises, and what it is asked with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from encke.bound import Bound, Promise
from encke.errors import BoundError, UnsupportedError
from encke.ops.backend import Backend

FLOATS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
BOOLS = frozenset({torch.bool})


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """How one tensor is to be encoded.

    dither        subtractive dither: the error is uniform, unbiased and independent of
                  the value, and still inside the bound
    seed          of the dither or of stochastic rounding; the same seed, the same bytes
    keep_nonzero  a value that is not zero never decodes to zero
    valid         where there is a value, if not everywhere; what is elsewhere is of no interest
    values        how often that is
    """

    promise: Promise
    backend: Backend
    dither: bool = False
    seed: int = 0
    keep_nonzero: bool = False
    valid: Tensor | None = None
    values: int = 0


class Encoded(NamedTuple):
    """A payload and the largest error it was made with (see format.md, offset 24)."""

    payload: Tensor
    promised: float
    why: str = ""


def encode_values(codec: Codec, x: Tensor, request: Request) -> Encoded:
    """The values of `x` encoded: where they lie, or one behind the other."""
    if request.valid is None or codec.takes_holes:
        return codec.encode(x, request)
    return codec.encode(x[request.valid], replace(request, valid=None))


class Codec(ABC):
    """A tensor in memory order goes to a payload and comes back.

    `encode` is given a contiguous tensor of a dtype in `dtypes`; `decode` is given any
    bytes whatsoever and returns a contiguous tensor of that shape and dtype or raises
    `CorruptStreamError`.
    """

    name: ClassVar[str]
    id: ClassVar[int]
    #: Whether `decode` takes `out=`, a contiguous tensor to fill.
    fills: ClassVar[bool] = False
    #: Whether `encode` minds `Request.valid`, and `decode` takes `valid=` and `out=`.
    takes_holes: ClassVar[bool] = False
    #: Whether zeros come back as zeros, and with `keep_nonzero` nothing else does.
    keeps_zeros: ClassVar[bool] = True
    #: Whether values may change at all; a lossy codec needs an error or a rate to work with.
    lossy: ClassVar[bool] = True
    dtypes: ClassVar[frozenset[torch.dtype]]

    @abstractmethod
    def encode(self, x: Tensor, request: Request) -> Encoded: ...

    @abstractmethod
    def decode(
        self, payload: Tensor, shape: tuple[int, ...], dtype: torch.dtype, backend: Backend
    ) -> Tensor: ...

    def check(self, dtype: torch.dtype, bound: Bound | None = None) -> None:
        """Raise if tensors of `dtype` or such a bound cannot be given to this codec."""
        if bound is not None and self.lossy and bound.number == 0:
            raise BoundError(
                f"codec {self.name!r} is lossy and cannot keep {bound!r}; give an error above "
                "zero, or use codec='lossless'"
            )
        if dtype not in self.dtypes:
            allowed = ", ".join(sorted(str(d).removeprefix("torch.") for d in self.dtypes))
            raise UnsupportedError(
                f"codec {self.name!r} takes {allowed}, the tensor is {dtype}; "
                "leave codec='auto' to have one chosen"
            )

    def no_rate(self, promise: Promise) -> None:
        """Raise if the bound is a rate, which an error-bounded codec cannot keep."""
        if promise.rate is not None:
            raise BoundError(
                f"codec {self.name!r} keeps an error, not a rate of {promise.rate:g} bits; "
                "use codec='group' or 'zfp', or give an error bound"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
