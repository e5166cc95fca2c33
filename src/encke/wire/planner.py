"""A plan in use: what was predicted, held against what a training sees.

Rank 0 decides. Its choice reaches the others by a broadcast in the queue, so that all ranks
change at the same place in the order of exchanges.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from encke.wire.failure import answered
from encke.wire.plan import PLAIN, Choice, Plan
from encke.wire.protocol import Tolerant

if TYPE_CHECKING:
    from encke.wire.comm import CompressedComm

_TO_CHANGE = 0.05  # a choice in use is left only for one that is faster by this share
_FURTHEST = 8.0  # what one correction may change a prediction by


class Planner:
    """Lets a `CompressedComm` follow a plan, and the plan what is observed."""

    def __init__(self, comm: CompressedComm, plan: Plan, *, every: int) -> None:
        self.plan = plan
        self._comm = comm
        self._every = every
        self._began: float | None = None
        self._steps = 0
        self._marked = (0.0, 0.0)
        comm.gradients.watching = every > 0
        self.use(plan.chosen)

    def step_begins(self, step: int) -> None:
        """Called when the first bucket of a step is ready."""
        now = time.perf_counter()
        if self._began is not None:
            self.plan.saw(self.plan.chosen, now - self._began)
        self._began = now
        if self._every and step > 1 and (step - 1) % self._every == 0:
            self._comm.queue.submit(self._decide)

    def _decide(self) -> None:
        """Runs in the queue: the same choice for all ranks from here on."""
        choices = self.plan.choices()
        best = self.plan.chosen
        if self._comm.rank == 0:
            best = self._best()
        place = torch.tensor([choices.index(best)])
        if dist.get_backend(self._comm.group) == "nccl":
            place = place.cuda()
        if self._comm.world > 1:
            with answered(self._comm.group, "the choice of a plan"):
                dist.broadcast(place, group_src=0, group=self._comm.group)
        self.use(choices[int(place)])

    def _best(self) -> Choice:
        """What rank 0 would choose after what it saw since it last chose."""
        seconds = self._comm.seconds
        exchange, coding = seconds.exchange, seconds.encode + seconds.decode
        seen = (exchange - self._marked[0], coding - self._marked[1])
        self._marked = (exchange, coding)
        steps = max(1, self._every)
        stages = self.plan.stages(self.plan.chosen)
        link = _times(seen[0] / steps, sum(s.first + s.second for s in stages))
        cpu = sum(s.encode + s.middle + s.decode for s in stages)
        coded = _times(seen[1] / steps, cpu)
        # Beside a busy backward a codec runs slower than alone: that was foreseen.
        if 1.0 <= coded <= 1.0 / self.plan.workload.together:
            coded = 1.0
        before = self.plan.chosen
        self.plan = self.plan.corrected(link=link, coding=coded)
        best = self.plan.best()
        gain = self.plan.row(before).seconds / self.plan.row(best).seconds - 1
        return best if gain > _TO_CHANGE else before

    def use(self, choice: Choice) -> None:
        """Exchange as `choice` says from now on; on all ranks at the same place."""
        self.plan.chosen = choice
        gradients = self._comm.gradients
        gradients.exact = choice.codec == PLAIN
        if choice.codec != PLAIN:
            self._comm.settings = replace(self._comm.settings, codec=choice.codec)
            if isinstance(gradients.policy, Tolerant):
                gradients.policy.tolerance = choice.tolerance


def _times(seen: float, predicted: float) -> float:
    """How many times longer than predicted something took, within reason."""
    if seen <= 0 or predicted <= 0:
        return 1.0
    return min(max(seen / predicted, 1 / _FURTHEST), _FURTHEST)
