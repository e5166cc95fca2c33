"""The ranks of one training, as torchrun starts them: each has its part of every batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from encke.study.errors import StudyError
from encke.study.subject import Subject
from encke.study.zoo import Batch

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's place among those that train together.

    All ranks make the same calls in the same order.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that reads and writes files."""
        return self.rank == 0

    def told(self, find: Callable[[], T]) -> T:
        """What `find` returns on the first rank; only that one calls it."""
        found = [find() if self.first else None]
        if self.world > 1:
            dist.broadcast_object_list(found, src=0)
        return found[0]  # type: ignore[return-value]

    def gathered(self, own: T) -> list[T]:
        """Every rank's `own`, on the first rank; nothing on the others."""
        if self.world == 1:
            return [own]
        found: list[Any] | None = [None] * self.world if self.first else None
        dist.gather_object(own, found, dst=0)
        return found or []

    def mean(self, number: float) -> float:
        """The mean over ranks, on every rank."""
        if self.world == 1:
            return number
        total = torch.tensor([number], dtype=torch.float64)
        dist.all_reduce(total)
        return float(total) / self.world

    def part(self, batch: Batch) -> Batch:
        """Every world-th example, from this rank's on; ranks have equally many.

        >>> batch = Batch((torch.arange(7),), torch.arange(7))
        >>> Ranks(rank=1, world=3).part(batch).inputs[0].tolist()
        [1, 4]
        """
        if self.world == 1:
            return batch
        count = len(batch.target) // self.world * self.world
        divides = all(
            isinstance(x, Tensor) and x.layout is torch.strided and len(x) == len(batch.target)
            for x in batch.inputs
        )
        if not divides:
            raise StudyError(
                "a batch has inputs that are not divided into examples (a graph), so it cannot "
                f"be shared out between {self.world} ranks; train it without --wire"
            )
        if count == 0:
            raise StudyError(
                f"a batch has {len(batch.target)} examples for {self.world} ranks; give a "
                "larger --batch, or start fewer ranks"
            )
        own = slice(self.rank, count, self.world)
        return Batch(tuple(x[own] for x in batch.inputs), batch.target[own])

    def share_out(self, subject: Subject) -> Subject:
        """The subject with this rank's part of every batch to train on."""
        whole = subject.train

        def train(epoch: int) -> Iterable[Batch]:
            return (self.part(batch) for batch in whole(epoch))

        return subject if self.world == 1 else replace(subject, train=train)


ALONE = Ranks()


def started_by_torchrun() -> bool:
    """Whether this process is one of several that were started together."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks that torchrun has started, as one group over gloo."""
    missing = [
        name
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if name not in os.environ
    ]
    if missing:
        raise StudyError(
            f"--wire is about several ranks, and {', '.join(missing)} is not in the "
            "environment to say which one this is; start it as `torchrun --nproc-per-node=2 -m "
            "encke train ...`, or leave --wire out"
        )
    dist.init_process_group("gloo")
    try:
        yield Ranks(rank=dist.get_rank(), world=dist.get_world_size())
        dist.barrier()  # a rank that leaves early takes its connections with it
    finally:
        dist.destroy_process_group()
