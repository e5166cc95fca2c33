"""The mean over ranks, computed from compressed messages.

Two ways, with the same promise (see `lattice`):

gather   every rank sends all its values to every other and each takes the mean. One round,
         one coding; the way for two ranks and for little data.
scatter  every stretch is cut in as many parts as there are ranks. Part j goes to rank j,
         which takes the mean and sends it to all: two rounds, two codings.

All ranks add decoded values in rank order, their own decoded values among them: the result
has the same bits everywhere. How values are grouped into buckets changes nothing: a stretch
is cut, coded and dithered by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from encke.wire.exchange import Exchange
from encke.wire.failure import answered
from encke.wire.lattice import shares
from encke.wire.message import Coder, Stretch, compacted, mixed

#: Values up to which a second round costs more than sending everything to everyone.
_LITTLE = 16_384
_SAMPLE = 16_384  # values of a stretch that its noise is estimated from


@dataclass(slots=True)
class Seconds:
    """Where the time of exchanges went."""

    encode: float = 0.0
    exchange: float = 0.0
    decode: float = 0.0

    def add(self, part: str, since: float) -> float:
        now = time.perf_counter()
        setattr(self, part, getattr(self, part) + now - since)
        return now


class Moments(NamedTuple):
    """Sums over a sample of a stretch: of squares over all ranks, of squares of the mean."""

    squares: float
    mean_squares: float
    values: int


@dataclass(slots=True)
class Reduction:
    """Takes means over the ranks of one exchange."""

    exchange: Exchange
    coder: Coder
    seconds: Seconds = field(default_factory=Seconds)

    @property
    def world(self) -> int:
        return self.exchange.world

    # -- the mean on every rank ------------------------------------------------------------

    def all_reduce(
        self,
        flat: Tensor,
        stretches: Sequence[Stretch],
        *,
        name: str,
        seed: int,
        out: Tensor,
        sent: Tensor | None = None,
        observe: bool = False,
    ) -> list[Moments]:
        """Fill the stretches of `out` (which may be `flat`) with the mean over ranks.

        `sent`, a tensor like `flat`, is filled with what the other ranks know of this
        rank's values: for error feedback. Moments are given if `observe`, the same on all
        ranks.
        """
        if self.world == 1:
            if out is not flat:
                out.copy_(flat)
            if sent is not None:
                sent.copy_(flat)
            return []
        if in_one_round(sum(s.values for s in stretches), self.world):
            return self._gather(flat, stretches, name, seed, out, sent, observe)
        return self._scatter(flat, stretches, name, seed, out, sent, observe)

    def _gather(
        self,
        flat: Tensor,
        stretches: Sequence[Stretch],
        name: str,
        seed: int,
        out: Tensor,
        sent: Tensor | None,
        observe: bool,
    ) -> list[Moments]:
        at = time.perf_counter()
        own = self.coder.encode(flat, stretches, seed=mixed(seed, self.exchange.rank))
        at = self.seconds.add("encode", at)
        received = self.exchange.to_all(own, name=name)
        at = self.seconds.add("exchange", at)
        moments = self._mean(received, stretches, out, observe)
        if sent is not None:
            self.coder.decode(own, stretches, sent)
        self.seconds.add("decode", at)
        return moments

    def _scatter(
        self,
        flat: Tensor,
        stretches: Sequence[Stretch],
        name: str,
        seed: int,
        out: Tensor,
        sent: Tensor | None,
        observe: bool,
    ) -> list[Moments]:
        first, second = shares(self.world)
        parts = [
            [part_of(s, p, self.world).scaled(first) for s in stretches]
            for p in range(self.world)
        ]
        mean, moments = self.reduce_scatter(
            flat, parts, name=name, seed=seed, sent=sent, observe=observe
        )
        again = [
            [part_of(s, p, self.world).scaled(second) for s in stretches]
            for p in range(self.world)
        ]
        rank = self.exchange.rank
        at = time.perf_counter()
        side = torch.tensor(
            [number for m in moments for number in (m.squares, m.mean_squares, m.values)],
            dtype=torch.float64,
        )
        message = self.coder.encode(
            mean, compacted(again[rank]), seed=mixed(seed, rank, 1), side=side
        )
        at = self.seconds.add("encode", at)
        received = self.exchange.to_all(message, name=f"{name}/mean")
        at = self.seconds.add("exchange", at)
        sums = torch.zeros(len(side), dtype=torch.float64)
        for stretches_of, encoded in zip(again, received, strict=True):
            sums += self.coder.decode(encoded, stretches_of, out, side=len(side)).cpu()
        if sent is not None:
            # What the second coding lost is this rank's to send again, once for all ranks.
            for here, there in zip(compacted(again[rank]), again[rank], strict=True):
                lost = mean[here.start : here.stop] - out[there.start : there.stop]
                sent[there.start : there.stop].sub_(lost, alpha=self.world)
        self.seconds.add("decode", at)
        return [Moments(a, b, int(c)) for a, b, c in sums.view(-1, 3).tolist()]

    # -- a part of the mean on each rank -----------------------------------------------------

    def reduce_scatter(
        self,
        flat: Tensor,
        parts: Sequence[Sequence[Stretch]],
        *,
        name: str,
        seed: int,
        sent: Tensor | None = None,
        observe: bool = False,
    ) -> tuple[Tensor, list[Moments]]:
        """The mean of `parts[rank]`, compacted; moments of that part alone."""
        at = time.perf_counter()
        rank = self.exchange.rank
        messages = [
            self.coder.encode(flat, part, seed=mixed(seed, rank, 0, p))
            for p, part in enumerate(parts)
        ]
        at = self.seconds.add("encode", at)
        received = self.exchange.all_to_all(messages, name=name)
        at = self.seconds.add("exchange", at)
        own = compacted(parts[rank])
        mean = flat.new_empty(sum(s.values for s in own))
        moments = self._mean(received, own, mean, observe)
        if sent is not None:
            for part, message in zip(parts, messages, strict=True):
                self.coder.decode(message, part, sent)
        self.seconds.add("decode", at)
        return mean, moments

    def _mean(
        self,
        received: Sequence[Tensor],
        stretches: Sequence[Stretch],
        out: Tensor,
        observe: bool,
    ) -> list[Moments]:
        """Fill `out` with the mean of what was received, added in rank order."""
        squares = torch.zeros(len(stretches), dtype=torch.float64)
        one = torch.empty_like(out)
        for rank, message in enumerate(received):
            here = out if rank == 0 else one
            self.coder.decode(message, stretches, here)
            if observe:
                squares += torch.tensor(
                    [square_of(here, s) for s in stretches], dtype=torch.float64
                )
            if rank:
                out.add_(one)
        out.mul_(1.0 / self.world)
        if not observe:
            return []
        return [
            Moments(total, square_of(out, s), sample_of(out, s).numel())
            for s, total in zip(stretches, squares.tolist(), strict=True)
        ]


def in_one_round(values: int, world: int) -> bool:
    """Whether so many values go by `gather`; all ranks answer alike."""
    return world == 2 or values <= _LITTLE


def exact_mean(flat: Tensor, *, group: object, world: int, out: Tensor) -> None:
    """Fill `out` with the mean over ranks by a plain all-reduce."""
    if out is not flat:
        out.copy_(flat)
    if world > 1:
        out.mul_(1.0 / world)
        with answered(group):
            dist.all_reduce(out, group=group)


def part_of(stretch: Stretch, part: int, parts: int) -> Stretch:
    """The part-th of `parts` parts of ⌈values / parts⌉ values, the last ones shorter."""
    size = -(-stretch.values // parts)
    start = min(stretch.start + part * size, stretch.stop)
    return Stretch(stretch.name, start, min(start + size, stretch.stop), stretch.bound)


def sample_of(flat: Tensor, stretch: Stretch) -> Tensor:
    """Some of the stretch's values, evenly spread: enough to know their variance by."""
    return flat[stretch.start : stretch.stop : stride_of(stretch.values)]


def stride_of(values: int) -> int:
    """Every how manieth of so many values is looked at.

    Never a multiple of 2, 3, 5 or 7, or a sample of a convolution's gradient would always hit
    the same place of its kernels, which may be one that only ever sees padding.

    >>> stride_of(10_000), stride_of(40_000), stride_of(512 * 512 * 9)
    (1, 11, 149)
    """
    stride = values // _SAMPLE
    if stride <= 1:
        return 1
    stride = max(stride, 11)
    while math.gcd(stride, 210) > 1:
        stride += 1
    return stride


def square_of(flat: Tensor, stretch: Stretch) -> float:
    """Sum of squares over the sample."""
    return float(sample_of(flat, stretch).double().square().sum())
