"""A training that can stop after any step and go on from there to the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from encke.study.cells import Cell
from encke.study.errors import StudyError
from encke.study.ranks import ALONE, Ranks
from encke.study.subject import Subject
from encke.study.zoo import Batch
from encke.tape.peak import StepPeak, resident, trim
from encke.wire.comm import CompressedComm
from encke.wire.message import mixed
from encke.wire.wrap import Wrapped

Point = dict[str, Any]


class Training:
    """Network, optimizer and way of a cell, a step at a time.

    curve    what was measured at some of the steps, as docs/study-results.md has it
    peak     the most memory of the process in any step, above what it had before the first
    wrapped  with several ranks, the network in DDP; its steps are steps of all ranks
    """

    def __init__(self, cell: Cell, subject: Subject, *, ranks: Ranks = ALONE) -> None:
        self.cell, self.subject, self.ranks = cell, ranks.share_out(subject), ranks
        self.wrapped: Wrapped | None = None
        settings = cell.training
        torch.manual_seed(cell.seed)
        self.network = subject.build()
        self.network.train()
        self.steps = settings.total_steps(subject.steps)
        self.optimizer = settings.make_optimizer(self.network)
        self.schedule = settings.make_schedule(self.optimizer, steps=self.steps)
        self.fitted = cell.way.fit(self.network, self.optimizer)
        every = max(1, math.ceil(self.steps / settings.points))
        self.points = {*range(every, self.steps, every), self.steps}
        self.step = 0
        self.curve: list[Point] = []
        self.peak = 0
        self._peak: StepPeak | None = None
        self._before = 0
        self._recent: list[float] = []
        self._epoch = self._place = 0
        self._begun = torch.get_rng_state()
        self._batches: Iterator[Batch] | None = None
        torch.manual_seed(cell.seed)  # building another network leaves the same behind

    # -- going on ------------------------------------------------------------------------

    def run(
        self,
        *,
        until: int | None = None,
        on_step: Callable[[Point], None] | None = None,
        on_point: Callable[[Point], None] | None = None,
    ) -> None:
        """Train to the end, or to step `until`, measuring where the curve has points.

        on_step   told step, loss, rate and ratio of every step
        on_point  told every point of the curve
        """
        if self.step == 0 and not self.curve:
            self._measure(on_point)
        while self.step < (self.steps if until is None else min(until, self.steps)):
            batch = self.next_batch()
            tape = self.fitted.tape
            if tape is not None:
                tape.ledger.reset_peak()
            rate = self.schedule.get_last_lr()[0]
            loss = self._take_measured(batch)
            self._recent.append(loss)
            self.schedule.step()
            self.step += 1
            if on_step is not None:
                on_step({"step": self.step, "loss": loss, "rate": rate, "ratio": self._ratio()})
            if self.step in self.points:
                self._measure(on_point)

    def _take_measured(self, batch: Batch) -> float:
        """A step, whose memory counts; what is evaluated between steps does not."""
        if self._peak is None:
            self._peak = StepPeak()
            trim()
            self._before = resident() or 0
        self._peak()
        loss = self.take(batch)
        self.peak = max(self.peak, self._peak() - self._before)
        return loss

    def take(self, batch: Batch) -> float:
        """One step of the optimizer; the loss before it."""
        with self._own_chance():
            loss = self.forward(batch)
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return float(loss.detach())

    def forward(self, batch: Batch, *, plain: bool = False) -> Tensor:
        """The loss of a batch, in the cell's way, or plainly inside `fitted.plain()`."""
        if plain:
            return self.subject.loss(self.network(*batch.inputs), batch.target)
        network = self.network if self.wrapped is None else self.wrapped.model
        with self.fitted.around():
            return self.subject.loss(network(*batch.inputs), batch.target)

    @contextmanager
    def _own_chance(self) -> Iterator[None]:
        """Inside, what is drawn (by dropout) differs between ranks; outside they agree."""
        if self.ranks.world == 1:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mixed(self.cell.seed, self.step, self.ranks.rank))
            yield

    def next_batch(self) -> Batch:
        """The next batch; after the last one of an epoch, the next epoch's first."""
        if self._batches is None:
            self._begun = torch.get_rng_state()
            self._batches = iter(self.subject.train(self._epoch))
        batch = next(self._batches, None)
        if batch is None:
            if self._place == 0:
                raise StudyError(f"{self.cell.data.name} has no batch to train on")
            self._epoch, self._place, self._batches = self._epoch + 1, 0, None
            return self.next_batch()
        self._place += 1
        return batch

    def _measure(self, on_point: Callable[[Point], None] | None) -> None:
        recent, self._recent = self._recent, []
        train_loss = self.ranks.mean(sum(recent) / len(recent)) if recent else None
        # All ranks have the same weights: the first one tries them.
        test_loss, metric = self.ranks.told(lambda: self.subject.evaluate(self.network))
        point = {
            "step": self.step,
            "train_loss": train_loss,
            "test_loss": test_loss,
            "metric": metric,
            "ratio": self._ratio(),
        }
        self.curve.append(point)
        if on_point is not None:
            on_point(point)

    def _ratio(self) -> float | None:
        """Plain bytes over stored ones at their peaks in the last step; None without a tape."""
        tape = self.fitted.tape
        if tape is None or not tape.ledger.stored_peak:
            return None
        return tape.ledger.plain_peak / tape.ledger.stored_peak

    # -- stopping and going on -----------------------------------------------------------

    @property
    def _comm(self) -> CompressedComm | None:
        return None if self.wrapped is None else self.wrapped.comm

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the training depends on."""
        tape = self.fitted.tape
        return {
            "version": 1,
            "cell": self.cell.id,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "tape": None if tape is None else tape.state_dict(),
            "wire": None if self._comm is None else self._comm.state_dict(),
            "step": self.step,
            "epoch": self._epoch,
            "place": self._place,
            "recent": list(self._recent),
            "curve": list(self.curve),
            "peak": self.peak,
            "begun": self._begun,
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was called."""
        if state.get("version") != 1 or state.get("cell") != self.cell.id:
            raise StudyError(
                f"the checkpoint is of {state.get('cell')!r}, this training is "
                f"{self.cell.id!r}; give the same settings, or another directory"
            )
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.fitted.tape is not None:
            self.fitted.tape.load_state_dict(state["tape"])
        if self._comm is not None and state.get("wire") is not None:
            self._comm.load_state_dict(state["wire"])
        self.step, self._epoch = state["step"], state["epoch"]
        self._recent, self.curve = list(state["recent"]), list(state["curve"])
        self.peak = state.get("peak", 0)
        # The order of a user's own batches may hang on torch's generator at their start.
        torch.set_rng_state(state["begun"])
        self._place, self._batches = 0, None
        if state["place"]:
            for _ in range(state["place"]):
                self.next_batch()
        torch.set_rng_state(state["random"])
