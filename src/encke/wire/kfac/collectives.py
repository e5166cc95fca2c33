"""How factors, solutions and preconditioned gradients reach other ranks.

K-FAC asks for the few calls of `Collectives`, which `encke.wire.CompressedComm` has. Here are
three more that have them: `Exact` over torch.distributed as it is, `Alone` for one process, and
`Rounded` for one process that wants to know what compression would do to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from encke.bound import Bound
from encke.codec import compress
from encke.wire.failure import answered, new_group


class Pending(Protocol):
    """A result that may still be on its way."""

    def wait(self) -> Tensor: ...


class Collectives(Protocol):
    """What K-FAC asks of a group of ranks; see `encke.wire.protocol` for the whole promise."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def all_reduce_mean(self, tensor: Tensor, *, bound: Bound | None, name: str) -> Pending: ...

    def broadcast(
        self, tensor: Tensor, *, source: int, bound: Bound | None, name: str
    ) -> Pending: ...

    def subgroup(self, ranks: Sequence[int]) -> Collectives: ...


@dataclass(frozen=True)
class Done:
    """A result that is there."""

    result: Tensor

    def wait(self) -> Tensor:
        return self.result


class _OneProcess:
    """What everybody sends is what this one process has."""

    rank = 0
    world = 1

    def broadcast(
        self, tensor: Tensor, *, source: int, bound: Bound | None, name: str
    ) -> Pending:
        return Done(tensor)

    def subgroup(self, ranks: Sequence[int]) -> Collectives:
        return self  # type: ignore[return-value]  # a subclass has the rest


class Alone(_OneProcess):
    """One process: everything is there already.

    >>> import torch
    >>> x = torch.ones(3)
    >>> Alone().all_reduce_mean(x, bound=None, name="x").wait() is x
    True
    """

    def all_reduce_mean(self, tensor: Tensor, *, bound: Bound | None, name: str) -> Pending:
        return Done(tensor)


class Rounded(_OneProcess):
    """One process whose messages lose what they would lose between ranks, with dither.

    >>> import torch
    >>> from encke.bound import Absolute
    >>> comm, x = Rounded(), torch.randn(1000)
    >>> y = comm.all_reduce_mean(x, bound=Absolute(0.1), name="x").wait()
    >>> bool((y - x).abs().max() <= 0.1), comm.sent_bytes < comm.plain_bytes / 3
    (True, True)
    """

    def __init__(self, *, codec: str = "entropy") -> None:
        self._codec = codec
        self._calls = 0
        self.sent_bytes = 0
        self.plain_bytes = 0

    def all_reduce_mean(self, tensor: Tensor, *, bound: Bound | None, name: str) -> Pending:
        self.plain_bytes += tensor.nbytes
        if bound is None:
            self.sent_bytes += tensor.nbytes
            return Done(tensor)
        self._calls += 1
        packed = compress(tensor, bound, codec=self._codec, dither=True, seed=self._calls)
        self.sent_bytes += packed.nbytes
        return Done(packed.decompress())


@dataclass(frozen=True)
class _Work:
    work: Any
    tensor: Tensor
    divisor: int
    group: Any
    name: str

    def wait(self) -> Tensor:
        with answered(self.group, repr(self.name)):
            self.work.wait()
        return self.tensor.div_(self.divisor) if self.divisor > 1 else self.tensor


class Exact:
    """torch.distributed without compression; bounds are kept by not making any error.

    It has a process group of its own, so that its calls never mix with those of DDP.
    """

    def __init__(self, ranks: Sequence[int] | None = None, *, like: Any = None) -> None:
        everyone = range(dist.get_world_size())
        members = list(everyone if ranks is None else ranks)
        self._members = members
        self._group = new_group(members, like=like)
        me = dist.get_rank()
        self.rank = members.index(me) if me in members else -1
        self.world = len(members)

    def all_reduce_mean(self, tensor: Tensor, *, bound: Bound | None, name: str) -> Pending:
        total = tensor.clone()
        with answered(self._group, repr(name)):
            work = dist.all_reduce(total, group=self._group, async_op=True)
        return _Work(work, total, self.world, self._group, name)

    def broadcast(
        self, tensor: Tensor, *, source: int, bound: Bound | None, name: str
    ) -> Pending:
        copy = tensor.clone()
        root = self._members[source]
        with answered(self._group, repr(name)):
            work = dist.broadcast(copy, root, group=self._group, async_op=True)
        return _Work(work, copy, 1, self._group, name)

    def subgroup(self, ranks: Sequence[int]) -> Collectives:
        return Exact([self._members[rank] for rank in ranks], like=self._group)


def found() -> Collectives:
    """Exact exchange where torch.distributed has several ranks, none otherwise."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Exact()
    return Alone()
