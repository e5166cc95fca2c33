"""Bytes that autograd holds for backward, whoever packs them: checkpointing, autocast, no one.

Storages are known by weak reference; those still alive count. So what is recomputed counts
from when it is there again, and what a hook has dropped does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from encke.study.recompute import Stretch
from encke.tape.autograd.dispatch import tensors_in
from encke.tape.autograd.nodes import active_hooks


class Holding:
    """The unique storages that something saved for backward lives in, without parameters.

    Copies of parameters in another type, as autocast makes them, do count.

    >>> layer = nn.Linear(8, 8)
    >>> holding = Holding(layer)
    >>> with holding.watch():
    ...     loss = layer(torch.ones(4, 8)).square().sum()
    >>> holding.bytes == 2 * 4 * 8 * 4  # the input of the layer, and what is squared
    True
    """

    def __init__(self, network: nn.Module) -> None:
        state = (*network.parameters(), *network.buffers())
        self._own = {_address(t) for t in state if t.layout == torch.strided}
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    @property
    def bytes(self) -> int:
        """Held now."""
        alive = {k: one for k, one in self._storages.items() if not _expired(one[0])}
        self._storages = alive
        return sum(count for _, count in alive.values())

    def note(self, values: Iterable[Any]) -> None:
        """Tensors among `values` are held from now on, for as long as they live."""
        for t in tensors_in(list(values)):
            if t.layout != torch.strided or t.is_meta or _address(t) in self._own:
                continue
            known = self._storages.get(_address(t))
            if known is None or _expired(known[0]):
                storage = t.untyped_storage()
                reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._storages[_address(t)] = reference, storage.nbytes()
        self.peak = max(self.peak, self.bytes)

    @contextmanager
    def within(self, stretches: Iterable[Stretch]) -> Iterator[None]:
        """Inside, what `stretches` keep, and what they have when they run again, is noted.

        To be left after backward, in which they run again.
        """
        before = [(stretch, stretch.inside, stretch.note) for stretch in stretches]
        for stretch, _, _ in before:
            stretch.inside, stretch.note = self.watch, self.note
        try:
            yield
        finally:
            for stretch, inside, note in before:
                stretch.inside, stretch.note = inside, note

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Inside, all that is saved is noted.

        Hooks that are set already go on packing: what they return is what is held.
        """
        outer = active_hooks()
        pack: Callable[[Tensor], Any] = Tensor.detach  # an op that saves its output, itself
        unpack: Callable[[Any], Tensor] = _itself
        if outer is not None:
            pack, unpack = outer

        def noted(t: Tensor) -> Any:
            try:
                packed = pack(t)
            except Exception:  # recomputing ends so, with its last tensor
                self.note([t])
                raise
            self.note([packed])
            return packed

        with torch.autograd.graph.saved_tensors_hooks(noted, unpack):
            yield


def _itself(t: Tensor) -> Tensor:
    return t


def _address(t: Tensor) -> int:
    address: int = t.untyped_storage()._cdata
    return address


def _expired(reference: StorageWeakRef) -> bool:
    return bool(reference.expired())  # type: ignore[no-untyped-call]
