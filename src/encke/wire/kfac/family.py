"""Units of equal shape, preconditioned by one batch of products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from encke.wire.kfac import triangle
from encke.wire.kfac.settings import Method
from encke.wire.kfac.unit import Side, Unit


@dataclass(kw_only=True, eq=False)
class Half:
    """What has been solved of one side, for all members of a family.

    `matrix` (n, d, d) are inverses or eigenvectors, (n, d) inverses of diagonals; `values`
    (n, d) are eigenvalues.
    """

    side: Side
    matrix: Tensor | None
    values: Tensor | None

    @classmethod
    def empty(cls, side: Side, n: int, *, method: Method, like: Tensor) -> Half:
        shape = (n, side.size) if side.diagonal else (n, side.size, side.size)
        eigen = method == "eigen"
        return cls(
            side=side,
            matrix=None if eigen and side.diagonal else like.new_zeros(shape),
            values=like.new_zeros((n, side.size)) if eigen else None,
        )

    def parts(self, inside: slice) -> list[Tensor]:
        """What a member's solution consists of."""
        return [part[inside] for part in (self.matrix, self.values) if part is not None]


class Family:
    """`gradient` (n, rows, columns) is filled, `run` leaves it preconditioned in `result`."""

    def __init__(self, numbers: Sequence[int], units: Sequence[Unit], result: Tensor) -> None:
        self.numbers = list(numbers)
        self.units = list(units)
        self.result = result
        self.gradient = torch.zeros_like(result)
        self.inside: list[slice] = []
        first = 0
        for unit in self.units:
            self.inside.append(slice(first, first + unit.groups))
            first += unit.groups
        self.sources = self._views(self.gradient)
        self.targets = self._views(result)
        self.rows: Half | None = None
        self.columns: Half | None = None
        self._scale: Tensor | None = None

    def _views(self, whole: Tensor) -> list[list[Tensor]]:
        return [
            unit.places(whole[inside])
            for unit, inside in zip(self.units, self.inside, strict=True)
        ]

    def hold(self, *, method: Method) -> None:
        """Make room for solutions: this rank preconditions these units."""
        n = len(self.result)
        unit = self.units[0]
        self.rows = Half.empty(unit.rows, n, method=method, like=self.result)
        self.columns = Half.empty(unit.columns, n, method=method, like=self.result)

    def halves(self) -> list[tuple[str, Half]]:
        """Both sides by name; none where this rank does not precondition."""
        if self.rows is None or self.columns is None:
            return []
        return [("rows", self.rows), ("columns", self.columns)]

    def solved(self, *, damping: float) -> None:
        """The solutions are there; prepare what follows from them."""
        halves = self.halves()
        values = [half.values for _, half in halves if half.values is not None]
        if len(values) == 2:
            rows, columns = values
            self._scale = 1 / (rows[:, :, None] * columns[:, None, :]).add_(damping)

    def run(self) -> None:
        """Rows⁻¹ · gradient · columns⁻¹, or the same through the eigenvectors."""
        (_, rows), (_, columns) = self.halves()
        if self._scale is None:
            between = _times(self.gradient, columns.matrix)
            self.result.copy_(_times(between.mT, rows.matrix).mT)  # inverses are symmetric
            return
        turned = _times(_times(self.gradient, columns.matrix).mT, rows.matrix).mT
        turned = turned * self._scale
        back = _times(turned, columns.matrix, transposed=True)
        self.result.copy_(_times(back.mT, rows.matrix, transposed=True).mT)


def _times(x: Tensor, matrix: Tensor | None, *, transposed: bool = False) -> Tensor:
    """x · matrix for each of n, where a matrix may be its diagonal, or None for one of ones."""
    if matrix is None:
        return x
    if matrix.dim() == 2:
        return x * matrix[:, None, :]
    return torch.bmm(x, matrix.mT if transposed else matrix)


def families(
    members: Sequence[tuple[int, Unit]], *, device: torch.device, dtype: torch.dtype
) -> tuple[list[Family], Tensor]:
    """Units grouped by shape, and the one flat tensor that all their results lie in."""
    groups: dict[tuple[Side, Side], list[tuple[int, Unit]]] = {}
    for number, unit in members:
        groups.setdefault((unit.rows, unit.columns), []).append((number, unit))
    sizes = [
        sum(unit.groups for _, unit in group) * rows.size * columns.size
        for (rows, columns), group in groups.items()
    ]
    flat = torch.zeros(sum(sizes), device=device, dtype=dtype)
    made = []
    for part, ((rows, columns), group) in zip(
        torch.split(flat, sizes), groups.items(), strict=True
    ):
        result = part.view(-1, rows.size, columns.size)
        made.append(Family([n for n, _ in group], [u for _, u in group], result))
    return made, flat


def packed(parts: Sequence[Tensor], *, symmetric: bool) -> list[Tensor]:
    """Solutions as they are sent or saved: inverses are symmetric, eigenvectors are not."""
    return [triangle.pack(part) if symmetric and part.dim() == 3 else part for part in parts]


def restore(target: Tensor, saved: Tensor, *, symmetric: bool) -> None:
    """Put a packed solution where it belongs."""
    target.copy_(triangle.unpack(saved) if symmetric and target.dim() == 3 else saved)
