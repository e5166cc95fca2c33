"""What the tape leaves to autograd: how it is recorded, and for how long it counts."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from encke.tape.observe.records import Record
from encke.tape.policy import Site


class Release:
    """A hook on a node: what autograd holds for it is let go when its backward has run."""

    __slots__ = ("_held",)

    def __init__(self, *held: object) -> None:
        self._held: tuple[object, ...] = held

    def __call__(self, _returned: Any, _received: Any) -> None:
        self._held = ()


def left(site: Site, t: Tensor) -> Record:
    """The record of a tensor whose bytes are not worth the time to pack them."""
    size = t.numel() * t.element_size()
    return _exact(site, tuple(t.shape), size, "its bytes are not worth the time")


def small(size: int) -> Record:
    """One record for all the small tensors of a pass, which have so many bytes."""
    return _exact(Site("(small tensors)", "", ""), (), size, "small")


def tail(size: int) -> Record:
    """One record for all that the last ops of a pass save: see `tape.cost.summit`."""
    return _exact(Site("(last ops)", "", ""), (), size, "the peak of the step lies elsewhere")


def _exact(site: Site, shape: tuple[int, ...], size: int, why: str) -> Record:
    return Record(
        site=site, shape=shape, plain=size, stored=size, how="exact", codec="", why=why
    )
