"""Who solves and who preconditions which unit: KAISA's gradient-worker fraction.

The ranks form a grid. A column of `workers` ranks holds the solutions of its units: one of
them solves, all of them precondition. Along a row, ranks of different columns give each other
the preconditioned gradients. One column of all ranks is KAISA's COMM-OPT (a fraction of 1),
columns of one rank its MEM-OPT (1/P).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from encke.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Placement:
    """`solver[i]` is the rank that solves unit i; see `columns` and `rows`.

    >>> grid = Placement.of([8.0, 1.0, 1.0, 4.0], world=4, fraction=0.5)
    >>> grid.columns, grid.rows, grid.solver
    (((0, 1), (2, 3)), ((0, 2), (1, 3)), (0, 3, 3, 2))
    """

    workers: int
    columns: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]
    solver: tuple[int, ...]

    @classmethod
    def of(cls, costs: Sequence[float], *, world: int, fraction: float) -> Placement:
        """The dearest unit first, each to the column and the rank with the least to do."""
        workers = max(1, round(world * fraction))
        if world % workers:
            allowed = ", ".join(f"{n}/{world}" for n in range(1, world + 1) if world % n == 0)
            raise UnsupportedError(
                f"KFAC: worker_fraction {fraction} makes columns of {workers} of {world} "
                f"ranks, which do not fill a grid; choose one of {allowed}"
            )
        columns = tuple(
            tuple(range(first, first + workers)) for first in range(0, world, workers)
        )
        rows = tuple(tuple(range(first, world, workers)) for first in range(workers))
        load = [0.0] * world
        solver = [0] * len(costs)
        for unit in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            column = min(columns, key=lambda ranks: sum(load[rank] for rank in ranks))
            solver[unit] = min(column, key=lambda rank: load[rank])
            load[solver[unit]] += costs[unit]
        return cls(workers=workers, columns=columns, rows=rows, solver=tuple(solver))

    def column_of(self, unit: int) -> int:
        """The number of the column that a unit's solver is in."""
        return self.solver[unit] // self.workers
