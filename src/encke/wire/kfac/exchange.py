"""One batch's factors, averaged over ranks, within an error that the damping hides.

First a short exact message: how much each rank has seen of each unit, and how large its factors
are. From it every rank knows the same scale for every slot. Then all triangles travel as one
message, each slot divided by the error it may have, so that a single bound of 1 serves all.

A symmetric d × d matrix of independent errors, uniform in ±e, has a spectral norm of about
2·√d·e/√3. That is to be the share `factor_error` of the damping of the slot. In the running
average a batch has the weight w, and errors of batches are independent: the average's error is
at most √w of a batch's, so a batch may have 1/√w as much.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from encke.bound import Absolute
from encke.wire.kfac import triangle
from encke.wire.kfac.collectives import Alone, Collectives, Pending
from encke.wire.kfac.factors import Factors, Stack, mean_trace
from encke.wire.kfac.settings import Method
from encke.wire.kfac.solve import split_damping

_LOG = logging.getLogger(__name__)

#: Damping counts as at most this share of a factor's mean eigenvalue. A layer whose gradients
#: are still small is damped far beyond that; as they grow its damping shrinks, while what was
#: lost before stays in the average for a while.
_LARGEST_DAMPING = 0.1


@dataclass(frozen=True, kw_only=True)
class Head:
    """What the short message says, summed over ranks; the last two by slot."""

    terms: float
    seen: Tensor
    refused: Tensor
    wants_exact: Tensor
    traces: Tensor
    norms: Tensor


@dataclass(kw_only=True)
class Underway:
    """An exchange that has begun; `used` are the units that it renews."""

    used: list[bool]
    errors: Tensor | None = None
    lossy: Pending | None = None
    exact: Pending | None = None


class FactorExchange:
    """Exchanges what `Factors` has summed, and renews its running averages."""

    def __init__(
        self, factors: Factors, comm: Collectives, *, method: Method, factor_error: float
    ) -> None:
        self._factors = factors
        self._comm = comm
        self._method = method
        self._error = factor_error
        #: Units that travel exactly, because compression made their factors indefinite.
        self.exact: set[int] = set()
        self._refusals: set[int] = set()
        self._underway: Underway | None = None

    @property
    def begun(self) -> bool:
        return self._underway is not None

    def refuse(self, unit: int) -> None:
        """This rank had to clamp too much of a unit; the next exchange tells the others."""
        if self._error and not isinstance(self._comm, Alone) and unit not in self.exact:
            self._refusals.add(unit)

    def begin(self, *, damping: float) -> None:
        """Start to send; `finish` must follow before anything is added to the sums."""
        factors, comm = self._factors, self._comm
        head = self._head()
        used = (head.seen > 0) & (head.refused == 0) & math.isfinite(head.terms)
        for unit in torch.nonzero(head.wants_exact).flatten().tolist():
            if unit not in self.exact:
                self.exact.add(unit)
                _LOG.warning(
                    "factors of %s travel exactly from now on: compressed, too much of their "
                    "spectrum was negative",
                    factors.units[unit].name,
                )
        rows = torch.where(used, 1 / head.seen.clamp_min(1), 0.0)[factors.unit_of]
        terms = torch.where(used, 1 / max(head.terms, 1.0), 0.0)[factors.unit_of]
        scale = torch.where(factors.is_input, rows, terms)
        for stack in factors.stacks:
            dead = ~used[factors.unit_of[stack.slots]]
            if bool(dead.any()):
                stack.sum[dead.to(stack.sum.device)] = 0  # what overflowed is not to be scaled
            stack.sum.mul_(stack.per_slot(scale * comm.world).to(stack.sum.device))
        underway = Underway(used=used.tolist())
        self._underway = underway
        if isinstance(comm, Alone):
            return
        whole = self._travels_exactly()
        if not bool(whole.all()):
            underway.errors = self._errors(head, scale, damping)
            lossy = self._message(~whole, underway.errors)
            underway.lossy = comm.all_reduce_mean(
                lossy, bound=Absolute(1.0), name="kfac.factors"
            )
        if bool(whole.any()):
            exact = self._message(whole, None)
            underway.exact = comm.all_reduce_mean(exact, bound=None, name="kfac.exact")

    def finish(self) -> list[bool]:
        """Wait, renew the averages, and clear the sums; which units were renewed."""
        underway, self._underway = self._underway, None
        if underway is None:
            return [False] * len(self._factors.units)
        whole = self._travels_exactly()
        if underway.lossy is not None:
            self._receive(underway.lossy.wait(), ~whole, underway.errors)
        if underway.exact is not None:
            self._receive(underway.exact.wait(), whole, None)
        self._factors.update(underway.used)
        self._factors.clear()
        return underway.used

    def _travels_exactly(self) -> Tensor:
        """By slot: whether it is sent without loss."""
        exact = [
            not self._error or unit in self.exact for unit in range(len(self._factors.units))
        ]
        return torch.tensor(exact, dtype=torch.bool)[self._factors.unit_of]

    def _head(self) -> Head:
        factors = self._factors
        traces = torch.cat(
            [mean_trace(stack, stack.sum).double().cpu() for stack in factors.stacks]
        )
        norms = torch.zeros_like(traces)
        if self._method == "eigen" and not isinstance(self._comm, Alone):
            norms = torch.cat(
                [stack.sum.flatten(1).norm(dim=1).double().cpu() for stack in factors.stacks]
            )
        units = len(factors.units)
        refused = torch.zeros(units, dtype=torch.float64)
        refused.index_add_(0, factors.unit_of, (~torch.isfinite(traces)).double())
        wants = torch.zeros(units, dtype=torch.float64)
        wants[list(self._refusals)] = 1
        self._refusals.clear()
        message = torch.cat(
            [
                torch.tensor([factors.terms, *factors.seen], dtype=torch.float64),
                refused,
                wants,
                traces.nan_to_num(0.0, 0.0, 0.0),
                norms.nan_to_num(0.0, 0.0, 0.0),
            ]
        )
        if not isinstance(self._comm, Alone):
            message = self._comm.all_reduce_mean(message, bound=None, name="kfac.head").wait()
            message = message * self._comm.world
        sizes = [1, units, units, units, factors.slots, factors.slots]
        terms, *rest = torch.split(message, sizes)
        seen, refused, wants, traces, norms = rest
        return Head(
            terms=float(terms),
            seen=seen,
            refused=refused,
            wants_exact=wants,
            traces=traces,
            norms=norms,
        )

    def _errors(self, head: Head, scale: Tensor, damping: float) -> Tensor:
        """The error that each slot's entries may have in this batch.

        What counts is how large the averages are once this batch is in them: a batch may be
        far larger or smaller than they are.
        """
        factors = self._factors
        newest = factors.per_slot(
            [factors.newest_weight(unit) for unit in range(len(factors.units))]
        )

        def after(averages: list[Tensor], batch: Tensor) -> Tensor:
            return torch.cat(averages).double().cpu().lerp(batch * scale, newest)

        means = [mean_trace(stack, stack.mean) for stack in factors.stacks]
        traces = after(means, head.traces)
        if self._method == "inverse":
            budget = split_damping(traces, factors.partner, damping)
        else:  # an error E on one side moves the Fisher by E ⊗ the other side
            norms = [stack.mean.flatten(1).norm(dim=1) for stack in factors.stacks]
            budget = damping / after(norms, head.norms)[factors.partner]
        budget = budget.minimum(_LARGEST_DAMPING * traces)
        spread = torch.cat(
            [
                torch.full((s.slots.stop - s.slots.start,), _norm_of_errors(s))
                for s in factors.stacks
            ]
        )
        errors = self._error * budget / (spread * newest.sqrt())
        usable = torch.isfinite(errors) & (errors > 0)
        return torch.where(usable, errors, torch.ones_like(errors))

    def _message(self, chosen: Tensor, errors: Tensor | None) -> Tensor:
        parts = []
        for stack in self._factors.stacks:
            mine = chosen[stack.slots].to(stack.sum.device)
            values = stack.sum
            if errors is not None:
                values = values / stack.per_slot(errors).to(values.device)
            values = values if bool(mine.all()) else values[mine]
            parts.append((values if stack.side.diagonal else triangle.pack(values)).flatten())
        return torch.cat(parts)

    def _receive(self, message: Tensor, chosen: Tensor, errors: Tensor | None) -> None:
        first = 0
        for stack in self._factors.stacks:
            mine = chosen[stack.slots].to(stack.sum.device)
            n, size = int(mine.sum()), stack.side.size
            each = size if stack.side.diagonal else size * (size + 1) // 2
            part = message[first : first + n * each].view(n, each)
            first += n * each
            values = part if stack.side.diagonal else triangle.unpack(part)
            if errors is not None:
                values = values * stack.per_slot(errors).to(values.device)[mine]
            stack.sum[mine] = values.to(stack.sum.dtype)


def _norm_of_errors(stack: Stack) -> float:
    """Norm of a matrix of independent errors within ±1."""
    return 1.0 if stack.side.diagonal else 2 * math.sqrt(stack.side.size / 3)
