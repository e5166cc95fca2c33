"""What a step takes with each way to exchange gradients: a small simulation.

Two threads of a rank share its processors: one computes forward and backward, the other works
off the buckets that are ready, one after another: encode, exchange, decode. While both
have something to compute, each is slower by what the machine lacks; while bytes travel,
nothing is computed for them but the share that the link itself needs. A step ends when both
are done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from encke.wire.lattice import shares
from encke.wire.link import Link


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Gradients that are exchanged together; `ready` seconds after the step began."""

    values: int
    nbytes: int
    ready: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A step without exchange: its seconds, and its buckets in order.

    together  how fast each of two busy threads runs, of the speed of one alone: 1 where
              there are processors for both, ½ where all are taken
    alone     time of a rank's computation while the other ranks of its machine wait, of that
              with all of them busy: below 1 where there are fewer processors than ranks
    """

    seconds: float
    buckets: Sequence[Bucket]
    together: float
    alone: float = 1.0

    @property
    def nbytes(self) -> int:
        return sum(bucket.nbytes for bucket in self.buckets)

    def uneven(self, loads: Sequence[float]) -> float:
        """Seconds until all ranks are done; `loads` are theirs as timed with all ranks busy.

        >>> crowded = Workload(seconds=1.0, buckets=[], together=0.5, alone=0.5)
        >>> crowded.uneven([2.0, 2.0]), crowded.uneven([2.0, 0.0])
        (2.0, 1.0)
        """
        return max(self.alone * max(loads), sum(loads) / len(loads))


@dataclass(frozen=True, kw_only=True, slots=True)
class Coding:
    """What a codec does to the gradients of one rank.

    encode, decode  seconds for each byte of plain gradients
    size            bytes coded, of the plain ones, when each rank's values are coded
    again           the same when their mean is coded
    """

    encode: float
    decode: float
    size: float
    again: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """Seconds for one bucket: processor, link, processor, link, processor.

    busy  the share of the link's seconds in which it keeps a processor busy
    """

    encode: float
    first: float
    middle: float = 0.0
    second: float = 0.0
    decode: float = 0.0
    busy: float = 0.0

    def tasks(self) -> list[tuple[bool, float]]:
        """(on the processor, seconds) in order."""
        idle = 1.0 - self.busy
        return [
            (True, self.encode + self.busy * self.first),
            (False, idle * self.first),
            (True, self.middle + self.busy * self.second),
            (False, idle * self.second),
            (True, self.decode),
        ]


def plain_stages(bucket: Bucket, link: Link) -> Stages:
    """A bucket that is reduced as it is."""
    return Stages(encode=0.0, first=link.reduce.seconds(bucket.nbytes), busy=link.reduce.busy)


def coded_stages(bucket: Bucket, link: Link, coding: Coding, *, one_round: bool) -> Stages:
    """A bucket that is coded: sent to all at once, or part by part with the mean sent back."""
    world, n = link.world, bucket.nbytes
    encode, decode = coding.encode * n, coding.decode * n
    sizes = link.exchange.latency  # of the messages, exchanged before them
    if one_round:
        sent = (world - 1) * coding.size * n
        return Stages(
            encode=encode,
            first=sizes + link.exchange.seconds(sent),
            decode=world * decode,
            busy=link.exchange.busy,
        )
    share = (world - 1) / world
    return Stages(
        encode=encode,
        first=sizes + link.exchange.seconds(share * coding.size * n),
        middle=decode + encode / world,
        second=sizes + link.exchange.seconds(share * coding.again * n),
        decode=decode,
        busy=link.exchange.busy,
    )


def again_of(size: float, *, world: int, noise_share: float, itemsize: int) -> float:
    """Size of the coded mean, of the plain bytes, from that of coded values.

    The mean has less variance, as far as that is noise between ranks, and its lattice has
    another step; one bit for each halving.
    """
    first, second = shares(world)
    spread = 1.0 - noise_share * (1.0 - 1.0 / world)
    bits = 8 * itemsize * size + math.log2(first / second) + 0.5 * math.log2(max(spread, 1e-6))
    return max(bits, 0.05) / (8 * itemsize)


def step_seconds(workload: Workload, stages: Sequence[Stages]) -> float:
    """When both threads are done.

    >>> bucket = Bucket(values=1, nbytes=4, ready=0.5)
    >>> work = Workload(seconds=1.0, buckets=[bucket], together=0.5)
    >>> step_seconds(work, [Stages(encode=0.0, first=0.2)])
    1.0
    >>> step_seconds(work, [Stages(encode=0.2, first=0.7)])
    1.6
    """
    now, computed = 0.0, 0.0
    for bucket, stage in zip(workload.buckets, stages, strict=True):
        if computed < bucket.ready:  # nothing to exchange yet: computing alone
            now, computed = now + bucket.ready - computed, bucket.ready
        for on_processor, seconds in stage.tasks():
            left = workload.seconds - computed
            if not on_processor:
                now, computed = now + seconds, computed + min(seconds, left)
                continue
            shared = min(seconds / workload.together, left / workload.together)
            done = shared * workload.together
            now, computed = now + shared + (seconds - done), computed + done
    return now + max(0.0, workload.seconds - computed)
