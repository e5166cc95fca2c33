"""What distributed K-FAC makes of a step, and how often it can be afforded.

In every `factor_interval`-th step curvature is sampled before backward, and its factors travel
first in the queue, while backward computes. In every `inverse_interval`-th each unit is solved
on one rank. With a worker fraction f (KAISA) the solution of a unit goes to the f·P ranks of a
column, all of which precondition its gradient; the other columns receive the result in every
step. A large fraction costs memory, a small one costs messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from encke.errors import UnsupportedError
from encke.wire.cost import (
    Bucket,
    Coding,
    Stages,
    coded_stages,
    plain_stages,
    step_seconds,
)
from encke.wire.kfac.placement import Placement
from encke.wire.link import Link
from encke.wire.plan import Plan
from encke.wire.reduce import in_one_round

#: Steps between new factors and between new solutions, the freshest curvature first.
INTERVALS = ((1, 1), (1, 5), (5, 10), (10, 20), (10, 50), (20, 100), (50, 500))


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitWork:
    """What one matrix of weights asks for.

    solve, multiply  seconds: of both its factors, and of preconditioning its gradient
    cost             by which units are dealt out to ranks
    held, sent       bytes of its solution: in memory, and on the way (half of what is
                     symmetric)
    gradient         bytes of its gradient
    """

    solve: float
    multiply: float
    cost: float
    held: float
    sent: float
    gradient: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvatureWork:
    """A model's curvature, as measured on all ranks at once.

    forward  seconds of a step before curvature is sampled
    sample   seconds of sampling: half a backward, and the factors' products
    average  seconds of averaging factors
    factors  bytes of all triangles
    coding   of factors
    """

    forward: float
    sample: float
    average: float
    factors: float
    coding: Coding
    units: tuple[UnitWork, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvatureRow:
    """One choice: seconds of a step on average, bytes of solutions that a rank holds."""

    fraction: float
    factor_interval: int
    inverse_interval: int
    compressed: bool
    seconds: float
    memory: float

    @property
    def options(self) -> dict[str, float]:
        """For `KFAC`."""
        found: dict[str, float] = {
            "worker_fraction": self.fraction,
            "factor_interval": self.factor_interval,
            "inverse_interval": self.inverse_interval,
        }
        return found if self.compressed else found | {"factor_error": 0.0}


@dataclass(frozen=True, kw_only=True)
class CurvaturePlan:
    """All choices within the memory limit, and the freshest that keeps the overhead.

    base     seconds of a step without K-FAC
    allowed  seconds that a step may take
    """

    rows: tuple[CurvatureRow, ...]
    chosen: CurvatureRow
    base: float
    allowed: float

    def explain(self) -> str:
        lines = [
            f"a step without K-FAC takes {1e3 * self.base:.1f} ms, it may take "
            f"{1e3 * self.allowed:.1f} ms",
            f"{'fraction':>10}{'factors':>9}{'solutions':>11}{'exchange':>12}"
            f"{'step ms':>10}{'memory MB':>11}",
        ]
        for row in self.rows:
            mark = "→" if row == self.chosen else " "
            lines.append(
                f"{mark}{row.fraction:>9.3f}{row.factor_interval:>9}{row.inverse_interval:>11}"
                f"{'compressed' if row.compressed else 'exact':>12}"
                f"{1e3 * row.seconds:>10.2f}{row.memory / 1e6:>11.2f}"
            )
        return "\n".join(lines)


def plan_curvature(
    work: CurvatureWork,
    plan: Plan,
    *,
    overhead: float = 0.25,
    memory: float | None = None,
    intervals: Sequence[tuple[int, int]] = INTERVALS,
) -> CurvaturePlan:
    """The freshest curvature that makes a step at most `overhead` longer.

    plan    of the gradients' exchange, whose choice is kept
    memory  bytes of solutions that a rank may hold

    Among the choices with the same intervals the fastest is taken. If even the longest
    intervals exceed the overhead, the fastest choice of all is.
    """
    if not work.units:
        raise UnsupportedError("there is no unit to precondition; K-FAC covers no layer")
    world = plan.link.world
    fractions = [n / world for n in range(1, world + 1) if world % n == 0]
    rows = [
        _row(work, plan, fraction=fraction, pair=pair, compressed=compressed)
        for pair in intervals
        for fraction in fractions
        for compressed in ((True, False) if world > 1 else (False,))
    ]
    fitting = [row for row in rows if memory is None or row.memory <= memory]
    if not fitting:
        least = min(row.memory for row in rows)
        raise UnsupportedError(
            f"memory limit is {memory!r} bytes, the solutions take at least {least:.0f} a rank"
        )
    base = plan.row(plan.chosen).seconds
    allowed = (1 + overhead) * base
    for pair in intervals:
        best = min(
            (r for r in fitting if (r.factor_interval, r.inverse_interval) == pair),
            key=lambda row: row.seconds,
            default=None,
        )
        if best is not None and best.seconds <= allowed:
            break
    else:
        best = min(fitting, key=lambda row: row.seconds)
    return CurvaturePlan(rows=tuple(fitting), chosen=best, base=base, allowed=allowed)


def _row(
    work: CurvatureWork, plan: Plan, *, fraction: float, pair: tuple[int, int], compressed: bool
) -> CurvatureRow:
    link, units, step = plan.link, work.units, plan.workload
    base = plan.row(plan.chosen).seconds
    grid = Placement.of([unit.cost for unit in units], world=link.world, fraction=fraction)
    by_rank = [
        [unit for unit, who in zip(units, grid.solver, strict=True) if who == rank]
        for rank in range(link.world)
    ]
    by_column = [[u for rank in column for u in by_rank[rank]] for column in grid.columns]
    solved = step.uneven([sum(unit.solve for unit in own) for own in by_rank])
    # One after another, as they stand in the queue; columns and rows work side by side.
    shared = max(
        sum(
            _broadcast(link, sum(unit.sent for unit in by_rank[rank]), grid.workers)
            for rank in column
        )
        for column in grid.columns
    )
    results = sum(
        _broadcast(link, sum(unit.gradient for unit in own), len(grid.columns))
        for own in by_column
    )
    multiplied = step.uneven([sum(unit.multiply for unit in own) for own in by_column])
    factor_interval, inverse_interval = pair
    renewed = _with_factors(work, plan, compressed=compressed) - base + work.average
    return CurvatureRow(
        fraction=fraction,
        factor_interval=factor_interval,
        inverse_interval=inverse_interval,
        compressed=compressed,
        seconds=base
        + renewed / factor_interval
        + (solved + shared) / inverse_interval
        + multiplied
        + results,
        memory=max(sum(unit.held for unit in own) for own in by_column),
    )


def _with_factors(work: CurvatureWork, plan: Plan, *, compressed: bool) -> float:
    """Seconds of a step in which factors travel: the first in the queue."""
    link, step = plan.link, plan.workload
    # A short exact message comes first and is waited for.
    head = link.reduce.latency if link.world > 1 else 0.0
    sample = work.sample + head
    longer = replace(
        step,
        seconds=step.seconds + sample,
        buckets=[
            Bucket(
                values=int(work.factors / 4),
                nbytes=int(work.factors),
                ready=work.forward + sample,
            ),
            *(replace(bucket, ready=bucket.ready + sample) for bucket in step.buckets),
        ],
    )
    return step_seconds(
        longer,
        [
            _factor_stages(longer.buckets[0], work, link, compressed=compressed),
            *plan.stages(plan.chosen),
        ],
    )


def _factor_stages(
    bucket: Bucket, work: CurvatureWork, link: Link, *, compressed: bool
) -> Stages:
    if link.world == 1:
        return Stages(encode=0.0, first=0.0)
    if not compressed:
        return plain_stages(bucket, link)
    return coded_stages(
        bucket, link, work.coding, one_round=in_one_round(bucket.values, link.world)
    )


def _broadcast(link: Link, nbytes: float, ranks: int) -> float:
    """Seconds of one rank's message to `ranks` - 1 others, by a tree, its size first."""
    if ranks == 1 or not nbytes:
        return 0.0
    return link.exchange.latency + link.exchange.seconds(math.ceil(math.log2(ranks)) * nbytes)
