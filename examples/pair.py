"""One network trained twice, plainly and with Encke, on the same batches and in turn.

In turn, so that whatever else the machine does slows both alike: the quotient of two
neighbouring steps says what compression costs, the seconds of either say little.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import encke
from encke.study.data import Source

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(kw_only=True)
class Training:
    """A network on its way, a step at a time.

    losses   of every step
    seconds  that every step took
    kept     bytes held for backward and bytes that autograd alone would hold, by step
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    tape: encke.Tape | None = None
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    kept: list[tuple[int, int]] = field(default_factory=list)

    def step(self, inputs: Tensor, target: Tensor, loss_of: Loss) -> None:
        started = time.perf_counter()
        self.optimizer.zero_grad()
        loss = loss_of(self.network(inputs), target)
        if self.tape is not None:
            self.kept.append((self.tape.stored_bytes, self.tape.plain_bytes))
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - started)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same training without and with a tape."""

    plain: Training
    encke: Training

    @classmethod
    def of(
        cls,
        build: Callable[[], nn.Module],
        *,
        rate: float,
        steps: int,
        tolerance: float,
        weight_decay: float = 1e-4,
    ) -> Pair:
        """Two networks from `build`, which gives the same weights each time it is called."""
        trainings = []
        for with_tape in (False, True):
            network = build()
            optimizer = torch.optim.AdamW(
                network.parameters(), lr=rate, weight_decay=weight_decay
            )
            trainings.append(
                Training(
                    network=network,
                    optimizer=optimizer,
                    schedule=torch.optim.lr_scheduler.OneCycleLR(
                        optimizer, rate, total_steps=steps
                    ),
                    # The one line that makes the difference.
                    tape=encke.attach(network, optimizer, tolerance=tolerance)
                    if with_tape
                    else None,
                )
            )
        return cls(plain=trainings[0], encke=trainings[1])

    def train(
        self, batches: Iterable[tuple[Tensor, Tensor]], loss_of: Loss, *, steps: int, name: str
    ) -> None:
        """A step of each for every batch, whose order alternates; says how far it is."""
        both, started = (self.plain, self.encke), time.perf_counter()
        for number, (inputs, target) in enumerate(batches, start=1):
            for training in both if number % 2 else reversed(both):
                training.step(inputs, target, loss_of)
            left = (time.perf_counter() - started) / number * (steps - number)
            _say(
                f"{name}: step {number} of {steps}, loss {self.plain.losses[-1]:.4f} plain, "
                f"{self.encke.losses[-1]:.4f} with Encke, {left:.0f} s left",
                whole=number % max(1, steps // 5) == 0 or number == steps,
            )
        if self.encke.tape is not None:
            self.encke.tape.detach()

    def kept(self) -> float:
        """How many times smaller what backward needs was kept, without the first fifth."""
        settled = self.encke.kept[len(self.encke.kept) // 5 :]
        return sum(plain for _, plain in settled) / sum(stored for stored, _ in settled)

    def relative_time(self) -> float:
        """Median over steps of a step's seconds with Encke by those of the plain one."""
        steps = zip(self.encke.seconds, self.plain.seconds, strict=True)
        return statistics.median(mine / plain for mine, plain in steps)


def passes(
    source: Source, *, batch: int, epochs: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of so many passes over the train split, each in an order of its own."""
    for epoch in range(epochs):
        shuffle = 1000 * seed + epoch
        for (inputs,), target in source.batches("train", batch, shuffle, drop_last=True):
            yield inputs, target


def _say(line: str, *, whole: bool) -> None:
    """On a terminal one line that changes, elsewhere the whole ones only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="\n" if whole else "", file=sys.stderr, flush=True)
    elif whole:
        print(line, file=sys.stderr, flush=True)
