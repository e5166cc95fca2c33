"""What the wire offers to those who exchange tensors, and what it asks of who sets bounds.

`Collectives` is the face of `CompressedComm` that K-FAC and others program against.
`BoundPolicy` answers how large an error each gradient may have. It lives above the wire
(`encke.control`); the wire has one rule of its own, `encke.wire.noise.NoiseRule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.futures import Future

from encke.bound import Bound


class Collectives(Protocol):
    """Exchanges between the ranks of one group, each within a bound.

    Every call returns at once with a future; `.wait()` gives the result. Calls are carried
    out one after another in the order in which they were made, so all ranks must make the
    same calls in the same order; nothing else is asked of them. `bound=None` exchanges
    exactly. All ranks give the same bound. A result has the same bits on every rank that
    gets it, the sender included. Inputs may be changed again once the future is done, not
    before; they are never written to. `name` is the same from step to step: the dither
    differs between names, and what is reported about an exchange is kept under its name.
    """

    rank: int
    world: int

    def all_reduce_mean(
        self, tensor: Tensor, *, bound: Bound | None, name: str
    ) -> Future[Tensor]:
        """The mean over ranks; its error is at most the bound, its standard deviation
        bound / √(3·world), and it is unbiased.

        The bound is `Absolute`, or `RmsRelative` to the root mean square over all ranks.
        """
        ...

    def reduce_scatter_mean(
        self, tensor: Tensor, *, bound: Bound | None, name: str
    ) -> Future[Tensor]:
        """This rank's part of the mean: of the flat tensor's `world` parts, the rank-th.

        Parts are of ⌈values / world⌉ values, the last ones shorter or empty.
        """
        ...

    def all_gather(
        self, tensor: Tensor, *, bound: Bound | None, name: str
    ) -> Future[list[Tensor]]:
        """The tensor of every rank, in rank order; shapes may differ, the dtype may not."""
        ...

    def broadcast(
        self, tensor: Tensor, *, source: int, bound: Bound | None, name: str
    ) -> Future[Tensor]:
        """The tensor of rank `source`; the others give one of the same shape and dtype."""
        ...

    def subgroup(self, ranks: Sequence[int]) -> Collectives:
        """The same among some of the ranks, through the same queue.

        Every rank of this group must call it, with the same ranks and in the same order,
        also those that are not in it. `source` and `rank` then count within the subgroup.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A stretch of gradients that has one bound: a parameter, or a few small ones.

    name    of the parameter, or of the first of the small ones
    values  how many
    world   ranks over which the mean is taken
    """

    name: str
    values: int
    world: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What an exchange showed about one segment; the same numbers on every rank.

    bound    of the error in this exchange; None if it was exact
    noise    variance between ranks, mean over values, without what compression added
    square   mean square of the mean over ranks
    error    in a checked exchange: mean square of the error of the mean
    largest  in a checked exchange: the largest error of the mean
    """

    segment: Segment
    step: int
    bound: float | None
    noise: float
    square: float
    error: float | None = None
    largest: float | None = None


class BoundPolicy(Protocol):
    """Sets the bound of every segment.

    It runs on every rank by itself. All ranks call it with the same arguments in the same
    order, and it must answer from nothing else, or the ranks would disagree about a lattice.
    """

    def bound(self, segment: Segment, *, step: int) -> float | None:
        """The largest error of the mean, absolute; None to exchange exactly."""
        ...

    def observes(self, *, step: int) -> bool:
        """Whether `observe` is to be called for this step's exchanges."""
        ...

    def observe(self, seen: Observation) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class Tolerant(Protocol):
    """A policy whose bounds follow from one number, which a plan may choose."""

    tolerance: float
