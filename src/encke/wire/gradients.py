"""The exchange of gradients: bounds asked for, noise reported, errors fed back or checked.

Everything here runs in the queue's thread, in the same order on every rank. That is why a
policy may be asked without any further agreement between ranks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from encke.wire.certificate import Certified, certify
from encke.wire.collectives import GroupCollectives, in_working_precision
from encke.wire.failure import answered
from encke.wire.feedback import Feedback
from encke.wire.lattice import shares
from encke.wire.message import Stretch, mixed
from encke.wire.noise import moments_over_ranks, variance_between
from encke.wire.protocol import BoundPolicy, Observation, Segment
from encke.wire.reduce import Moments, exact_mean, in_one_round


class Gradients:
    """Takes the mean of gradients over ranks, within the bounds of a policy.

    feedback  what earlier exchanges lost, or None
    check     every so many steps the result is held against an exact all-reduce; 0: never
    exact     exchange everything exactly, as plain DDP does
    watching  look at the noise even so, for a time when it will be needed
    """

    def __init__(
        self,
        collectives: GroupCollectives,
        policy: BoundPolicy,
        *,
        feedback: Feedback | None = None,
        check: int = 0,
    ) -> None:
        self.collectives = collectives
        self.policy = policy
        self.feedback = feedback
        self.check = check
        self.exact = False
        self.watching = False
        self.plain_bytes = 0

    def all_reduce(self, buffer: Tensor, stretches: Sequence[Stretch], *, step: int) -> Tensor:
        """The flat `buffer` itself, with the mean over ranks in its stretches."""
        world = self.collectives.world
        if world == 1 or not stretches:
            return buffer
        self.plain_bytes += buffer.nbytes
        if self.exact:
            return self._exactly(buffer, stretches, step)
        bounded = self.bounded(stretches, step)
        if all(stretch.bound is None for stretch in bounded):
            return self._exactly(buffer, bounded, step)
        flat = in_working_precision(buffer)
        checks = self.check > 0 and step % self.check == 0
        given, sent = flat, None
        if self.feedback is not None:
            given, sent = self.feedback.added(flat, bounded), torch.empty_like(flat)
        elif checks:
            given = flat.clone()
        reduction = self.collectives.reduction(flat.device)
        moments = reduction.all_reduce(
            given,
            bounded,
            name=bounded[0].name,
            seed=mixed(self.collectives.settings.seed, step),
            out=flat,
            sent=sent,
            observe=self.policy.observes(step=step),
        )
        if flat.data_ptr() != buffer.data_ptr():
            buffer.copy_(flat)
        if self.feedback is not None and sent is not None:
            self.feedback.keep(given, sent, bounded)
        certified = self._certified(given, buffer, bounded) if checks else None
        once = in_one_round(sum(s.values for s in bounded), world)
        self.report(bounded, moments, step, 1.0 if once else shares(world)[0], certified)
        return buffer

    def reduce_scatter(
        self, flat: Tensor, chunks: Sequence[Sequence[Stretch]], *, step: int
    ) -> Tensor:
        """The mean over ranks of this rank's chunk; the stretches of all chunks correspond."""
        own = self.collectives
        self.plain_bytes += flat.nbytes
        given, sent = in_working_precision(flat), None
        bounded = [list(chunk) if self.exact else self.bounded(chunk, step) for chunk in chunks]
        if self.feedback is not None:
            given = self.feedback.added(given, itertools.chain(*bounded))
            sent = torch.empty_like(given)
        observes = self.policy.observes(step=step) and not self.exact
        mean, moments = own.reduction(given.device).reduce_scatter(
            given,
            bounded,
            name=bounded[0][0].name,
            seed=mixed(own.settings.seed, step),
            sent=sent,
            observe=observes,
        )
        if self.feedback is not None and sent is not None:
            self.feedback.keep(given, sent, itertools.chain(*bounded))
        if observes:
            sums = torch.tensor(moments, dtype=torch.float64, device=flat.device)
            if own.world > 1:
                with answered(own.group):
                    dist.all_reduce(sums, group=own.group)
            moments = [Moments(a, b, int(c)) for a, b, c in sums.tolist()]
            self.report(bounded[own.rank], moments, step, 1.0)
        return mean.to(flat.dtype)

    def bounded(self, stretches: Sequence[Stretch], step: int) -> list[Stretch]:
        """The stretches with the policy's bounds."""
        return [
            replace(stretch, bound=self.policy.bound(self._segment(stretch), step=step))
            for stretch in stretches
        ]

    def report(
        self,
        stretches: Sequence[Stretch],
        moments: Sequence[Moments],
        step: int,
        share: float,
        certified: Sequence[Certified] | None = None,
    ) -> None:
        """Tell the policy; `share` of the bound was used to code each rank's values."""
        for place, (stretch, seen) in enumerate(zip(stretches, moments, strict=False)):
            added = (share * (stretch.bound or 0.0)) ** 2 / 3
            noise, square = variance_between(seen, world=self.collectives.world, added=added)
            measured = certified[place] if certified is not None else None
            self.policy.observe(
                Observation(
                    segment=self._segment(stretch),
                    step=step,
                    bound=stretch.bound,
                    noise=noise,
                    square=square,
                    error=measured.mean_square if measured else None,
                    largest=measured.largest if measured else None,
                )
            )

    def _segment(self, stretch: Stretch) -> Segment:
        return Segment(name=stretch.name, values=stretch.values, world=self.collectives.world)

    def _exactly(self, buffer: Tensor, stretches: Sequence[Stretch], step: int) -> Tensor:
        """The exact mean, and a look at the noise: how every segment begins."""
        world, group = self.collectives.world, self.collectives.group
        observes = self.policy.observes(step=step) and (self.watching or not self.exact)
        given = in_working_precision(buffer.clone()) if observes else None
        began = time.perf_counter()
        exact_mean(buffer, group=group, world=world, out=buffer)
        self.collectives.seconds.add("exchange", began)
        if given is not None:
            mean = in_working_precision(buffer)
            moments = moments_over_ranks(given, mean, stretches, group=group)
            self.report(stretches, moments, step, 0.0)
        return buffer

    def _certified(
        self, given: Tensor, mean: Tensor, stretches: Sequence[Stretch]
    ) -> list[Certified]:
        return certify(
            given,
            mean,
            stretches,
            group=self.collectives.group,
            world=self.collectives.world,
            unbiased=self.collectives.settings.dither,
        )
