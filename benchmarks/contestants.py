"""Everything that is measured, behind one pair of calls: Encke's codecs and their peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import zfpy
from pysz import sz, szAlgorithm, szConfig, szErrorBoundMode
from torch import Tensor

import encke
from encke.bound import Bound, FixedRate, Lossless


class Contestant(Protocol):
    """Encodes a tensor under a bound; `error` is what the bound resolves to, if it does."""

    name: str
    dither: bool
    ours: bool

    def encode(self, x: Tensor, bound: Bound, error: float) -> Any: ...
    def decode(self, packed: Any, out: Tensor | None = None) -> Tensor:
        """The values, in `out` where the codec can fill it, else in fresh memory."""
        ...

    def size(self, packed: Any) -> int: ...


@dataclass(frozen=True)
class Ours:
    """A codec of Encke, as a user calls it."""

    name: str
    dither: bool = False
    seed: int = 0
    ours: bool = True

    def encode(self, x: Tensor, bound: Bound, error: float) -> encke.Packed:
        return encke.compress(x, bound, codec=self.name, dither=self.dither, seed=self.seed)

    def decode(self, packed: encke.Packed, out: Tensor | None = None) -> Tensor:
        return encke.decompress(packed, out=out)

    def size(self, packed: encke.Packed) -> int:
        return packed.nbytes


@dataclass(frozen=True)
class SZ3:
    """SZ3 in its absolute mode; interpolation with Lorenzo is its default algorithm."""

    name: str = "SZ3"
    algorithm: int = szAlgorithm.INTERP_LORENZO
    dither: bool = False
    ours: bool = False

    def encode(self, x: Tensor, bound: Bound, error: float) -> tuple[np.ndarray, Any]:
        settings = szConfig(tuple(x.shape))
        settings.errorBoundMode = szErrorBoundMode.ABS
        settings.absErrorBound = error
        settings.cmprAlgo = self.algorithm
        settings.openmp = False
        return sz.compress(x.numpy(), settings)[0], tuple(x.shape)

    def decode(self, packed: tuple[np.ndarray, Any], out: Tensor | None = None) -> Tensor:
        compressed, shape = packed
        return torch.from_numpy(sz.decompress(compressed, np.float32, shape)[0])

    def size(self, packed: tuple[np.ndarray, Any]) -> int:
        return packed[0].nbytes


@dataclass(frozen=True)
class ZFP:
    """zfp with its tolerance set to the error."""

    name: str = "zfp"
    dither: bool = False
    ours: bool = False

    def encode(self, x: Tensor, bound: Bound, error: float) -> bytes:
        return zfpy.compress_numpy(x.numpy(), tolerance=error)

    def decode(self, packed: bytes, out: Tensor | None = None) -> Tensor:
        return torch.from_numpy(zfpy.decompress_numpy(packed))

    def size(self, packed: bytes) -> int:
        return len(packed)


@dataclass(frozen=True)
class MinMax:
    """Plain min-max quantisation in groups, what activation compressors commonly use.

    A group of 256 values keeps its minimum and scale in float32 and each value's code,
    rounded to nearest, in 2, 4 or 8 bits.
    """

    name: str = "min-max"
    group: int = 256
    dither: bool = False
    ours: bool = False

    def encode(self, x: Tensor, bound: Bound, error: float) -> tuple[Any, ...]:
        bits = int(bound.number)
        flat = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % self.group))
        groups = flat.view(-1, self.group)
        low, high = (edge.unsqueeze(1) for edge in torch.aminmax(groups, dim=1))
        scale = ((high - low) / (2**bits - 1)).clamp_min(torch.finfo(torch.float32).tiny)
        codes = ((groups - low) / scale).round_().to(torch.uint8).flatten()
        packed = codes[:: 8 // bits].clone()
        for place in range(1, 8 // bits):
            packed |= codes[place :: 8 // bits] << (place * bits)
        return packed, low, scale, bits, tuple(x.shape)

    def decode(self, packed: tuple[Any, ...], out: Tensor | None = None) -> Tensor:
        stored, low, scale, bits, shape = packed
        places = [(stored >> (place * bits)) & (2**bits - 1) for place in range(8 // bits)]
        codes = torch.stack(places, dim=1).view(-1, self.group)
        values = (codes * scale + low).flatten()
        return values[: int(np.prod(shape))].view(shape)

    def size(self, packed: tuple[Any, ...]) -> int:
        return sum(part.numel() * part.element_size() for part in packed[:3])


BOUNDED: tuple[Contestant, ...] = (
    Ours("fixed"),
    Ours("fixed", dither=True),
    Ours("entropy"),
    Ours("entropy", dither=True),
    Ours("predict"),
    Ours("predict", dither=True),
    SZ3(),
    SZ3("SZ3 interpolation", szAlgorithm.INTERP),
    SZ3("SZ3 Lorenzo+regression", szAlgorithm.LORENZO_REG),
    SZ3("SZ3 no prediction", szAlgorithm.NOPRED),
    ZFP(),
)

#: Those whose size does not follow from an error, with the settings they are run at.
UNBOUNDED: tuple[tuple[Contestant, tuple[Bound, ...]], ...] = (
    (Ours("group"), (FixedRate(2), FixedRate(4), FixedRate(8))),
    (MinMax(), (FixedRate(2), FixedRate(4), FixedRate(8))),
    (Ours("lossless"), (Lossless(),)),
)
