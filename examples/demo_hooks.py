"""Saved-tensor hooks that keep activations compressed between forward and backward."""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import encke

BINS = 40


class Kept:
    """One compressed activation, shared by every operation that keeps it."""

    def __init__(self, x: Tensor, packed: encke.Packed) -> None:
        self.packed = packed
        self.storage = StorageWeakRef(x.untyped_storage())


class ForReLU(NamedTuple):
    """A kept activation as ReLU's backward wants it, which asks for nothing but its sign.

    Dither may take a small positive value below zero. The other operations want it so,
    since its error is then unbiased; here it is moved back to its own side of zero.
    """

    kept: Kept


class ActivationCompressor:
    """Saved-tensor hooks: activations in and out through Encke, parameters untouched.

    A tensor that two operations keep (a ReLU's output is the next convolution's input)
    is compressed once. Tensors of fewer than `smallest` values stay as they are. With
    `bound=None` nothing is compressed, only counted.
    """

    def __init__(
        self, network: nn.Module, *, bound: encke.Bound | None, codec: str, smallest: int = 4096
    ) -> None:
        self.bound = bound
        self.codec = codec
        self.smallest = smallest
        self.parameters = {p.untyped_storage().data_ptr() for p in network.parameters()}
        self.shared: weakref.WeakValueDictionary[tuple[Any, ...], Kept] = (
            weakref.WeakValueDictionary()
        )
        self.seed = 0
        self.layer, self.in_relu = "", False
        self.recording = False
        self.start_step()
        for name, module in network.named_modules():
            if not list(module.children()):
                module.register_forward_pre_hook(functools.partial(self._enter, name))

    def _enter(self, name: str, module: nn.Module, _: object) -> None:
        self.layer, self.in_relu = name, isinstance(module, nn.ReLU)

    def start_step(self, *, recording: bool = False) -> None:
        """Forget the counts of the step before."""
        self.recording = recording
        self.plain: dict[str, int] = {}
        self.stored: dict[str, int] = {}
        self.histogram = torch.zeros(BINS, dtype=torch.int64)
        self.largest = 0.0
        self._counted: list[StorageWeakRef] = []

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, x: Tensor) -> Tensor | Kept | ForReLU:
        if x.untyped_storage().data_ptr() in self.parameters:
            return x
        compressible = x.dtype.is_floating_point or x.dtype in (torch.bool, torch.int64)
        if self.bound is None or x.numel() < self.smallest or not compressible:
            if self._first_seen(x):
                self._count(_bytes(x), _bytes(x))
            # Detached, since an operation that keeps its own output would keep itself.
            return x.detach()
        # An address is only a name while its storage lives: see `Kept.storage`.
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype, x._version)
        kept = self.shared.get(key)
        if kept is None or kept.storage.expired():
            kept = self.shared[key] = Kept(x, self._compress(x))
            # What is held is the payload's storage, not only the part in use.
            stored = kept.packed.payload.untyped_storage().nbytes()
            self._count(_bytes(x) if self._first_seen(x) else 0, stored)
            if self.recording and x.dtype.is_floating_point:
                self._record_error(x, kept.packed)
        return ForReLU(kept) if self.in_relu else kept

    def unpack(self, held: Tensor | Kept | ForReLU) -> Tensor:
        if isinstance(held, ForReLU):
            y = encke.decompress(held.kept.packed)
            return y.where(y >= 0, torch.finfo(y.dtype).tiny)
        return encke.decompress(held.packed) if isinstance(held, Kept) else held

    def _compress(self, x: Tensor) -> encke.Packed:
        if x.dtype == torch.bool:
            return encke.compress(x, encke.Lossless(), codec="mask")
        if x.dtype == torch.int64:
            return encke.compress(x, encke.Lossless(), codec="index")
        self.seed += 1
        return encke.compress(x, self.bound, codec=self.codec, dither=True, seed=self.seed)

    def _first_seen(self, x: Tensor) -> bool:
        storage = StorageWeakRef(x.untyped_storage())
        if any(storage.cdata == seen.cdata for seen in self._counted):
            return False
        self._counted.append(storage)
        return True

    def _count(self, plain: int, stored: int) -> None:
        self.plain[self.layer] = self.plain.get(self.layer, 0) + plain
        self.stored[self.layer] = self.stored.get(self.layer, 0) + stored

    def _record_error(self, x: Tensor, packed: encke.Packed) -> None:
        """Errors over the bound, of all values but exact zeros, which come back as zeros."""
        error = (encke.decompress(packed).double() - x.double())[x != 0] / packed.promised
        self.histogram += torch.histc(error, bins=BINS, min=-1, max=1).to(torch.int64)
        if error.numel():
            self.largest = max(self.largest, error.abs().max().item())


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()
