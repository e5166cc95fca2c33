"""What distributed K-FAC would add to a step, and how often it can be afforded.

A unit is a matrix of weights, r × c; its curvature has two factors, r × r and c × c. In every
`factor_interval`-th step factors are averaged over ranks, in every `inverse_interval`-th each
is solved on one rank. With a worker fraction f (KAISA) the solution of a unit goes to the f·P
ranks of a column, all of which precondition its gradient; the other columns receive the result
in every step. A large fraction costs memory, a small one costs messages.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from encke.errors import UnsupportedError
from encke.wire.link import Link, slowest

#: Steps between new factors and between new solutions, the freshest curvature first.
INTERVALS = ((1, 1), (1, 5), (5, 10), (10, 20), (10, 50), (20, 100), (50, 500))
_SIZES = (96, 192)
_FLOAT = 4  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Speeds:
    """Seconds for each n³ of solving an n × n factor, and for each multiplication."""

    solve: float
    multiply: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvatureRow:
    """One choice: seconds that it adds to a step on average, bytes that a rank holds."""

    fraction: float
    factor_interval: int
    inverse_interval: int
    seconds: float
    memory: float


@dataclass(frozen=True, kw_only=True)
class CurvaturePlan:
    """All choices within the memory limit, and the freshest that keeps the overhead."""

    rows: tuple[CurvatureRow, ...]
    chosen: CurvatureRow
    allowed: float

    def explain(self) -> str:
        lines = [
            f"at most {1e3 * self.allowed:.1f} ms more a step",
            f"{'fraction':>10}{'factors':>9}{'solutions':>11}{'added ms':>10}{'memory MB':>11}",
        ]
        for row in self.rows:
            mark = "→" if row == self.chosen else " "
            lines.append(
                f"{mark}{row.fraction:>9.3f}{row.factor_interval:>9}{row.inverse_interval:>11}"
                f"{1e3 * row.seconds:>10.2f}{row.memory / 1e6:>11.2f}"
            )
        return "\n".join(lines)


def measure_speeds(group: Any, *, device: torch.device, rounds: int = 3) -> Speeds:
    """Eigendecompositions and products of two sizes, on all ranks at once."""
    solves, products = [], []
    for size in _SIZES:
        x = torch.randn(size, 2 * size, device=device)
        factor = x @ x.T
        for _ in range(rounds):
            dist.barrier(group=group)
            begin = time.perf_counter()
            torch.linalg.eigh(factor)
            middle = time.perf_counter()
            float((factor @ factor)[0, 0])
            solves.append((middle - begin) / size**3)
            products.append((time.perf_counter() - middle) / size**3)
    return Speeds(
        solve=slowest(statistics.median(solves), group, device),
        multiply=slowest(statistics.median(products), group, device),
    )


def plan_curvature(
    units: Sequence[tuple[int, int]],
    link: Link,
    speeds: Speeds,
    *,
    step_seconds: float,
    overhead: float = 0.25,
    memory: float | None = None,
    factor_size: float = 1.0,
    intervals: Sequence[tuple[int, int]] = INTERVALS,
) -> CurvaturePlan:
    """The freshest curvature that makes a step at most `overhead` longer.

    units        rows and columns of each matrix of weights
    memory       bytes of solutions that a rank may hold
    factor_size  bytes of a compressed factor, of its plain ones

    Among fractions with the same intervals the fastest is taken. If even the longest
    intervals exceed the overhead, the fastest choice of all is.

    >>> from encke.wire.link import Line
    >>> line = Line(latency=1e-4, bandwidth=1e8)
    >>> link = Link(world=4, exchange=line, reduce=line)
    >>> plan = plan_curvature([(64, 128)] * 8, link, Speeds(solve=1e-9, multiply=1e-11),
    ...                       step_seconds=0.1)
    >>> plan.chosen.factor_interval, plan.chosen.inverse_interval
    (1, 1)
    """
    if not units:
        raise UnsupportedError(
            "there is no unit to precondition; give rows and columns of each"
        )
    world = link.world
    fractions = [n / world for n in range(1, world + 1) if world % n == 0]
    rows = [
        _row(units, link, speeds, fraction, pair, factor_size)
        for pair in intervals
        for fraction in fractions
    ]
    fitting = [row for row in rows if memory is None or row.memory <= memory]
    if not fitting:
        least = min(row.memory for row in rows)
        raise UnsupportedError(
            f"memory limit is {memory!r} bytes, the solutions take at least {least:.0f} a rank"
        )
    allowed = overhead * step_seconds
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
    return CurvaturePlan(rows=tuple(fitting), chosen=best, allowed=allowed)


def _row(
    units: Sequence[tuple[int, int]],
    link: Link,
    speeds: Speeds,
    fraction: float,
    pair: tuple[int, int],
    factor_size: float,
) -> CurvatureRow:
    factor_interval, inverse_interval = pair
    world, workers = link.world, round(fraction * link.world)
    columns = world // workers
    factors = sum(_FLOAT * (n * (n + 1) / 2) for unit in units for n in unit)
    solutions = sum(_FLOAT * n * n for unit in units for n in unit)
    weights = sum(_FLOAT * r * c for r, c in units)
    reduced = link.exchange.seconds(2 * (world - 1) / world * factor_size * factors)
    solved = speeds.solve * _busiest([float(r**3 + c**3) for r, c in units], world)
    # A rank sends what it solved to the rest of its column, and what its column
    # preconditions to the rest of its row.
    shared = link.exchange.seconds(solutions * (workers - 1) / world) if workers > 1 else 0.0
    sent = link.exchange.seconds(weights * (columns - 1) / world) if columns > 1 else 0.0
    products = _busiest([float(r * c * (r + c)) for r, c in units], columns)
    seconds = (
        (reduced if world > 1 else 0.0) / factor_interval
        + (solved + shared) / inverse_interval
        + sent
        + 2 * speeds.multiply * products
    )
    return CurvatureRow(
        fraction=fraction,
        factor_interval=factor_interval,
        inverse_interval=inverse_interval,
        seconds=seconds,
        memory=_busiest([float(_FLOAT * (r * r + c * c)) for r, c in units], columns),
    )


def _busiest(costs: Sequence[float], places: int) -> float:
    """The most that one of `places` has to do, the dearest given away first."""
    loads = [0.0] * places
    for cost in sorted(costs, reverse=True):
        loads[loads.index(min(loads))] += cost
    return max(loads)
