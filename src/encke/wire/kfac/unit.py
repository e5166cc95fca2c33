"""A unit: one matrix of weights, the two sides of its curvature, where its gradient lies."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Side:
    """One Kronecker factor: how many rows it has, and whether only its diagonal is kept."""

    size: int
    diagonal: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Unit:
    """`groups` matrices of `rows` × `columns` whose Fisher is taken as rows ⊗ columns.

    The matrix is the weight, flattened to two dimensions (a grouped convolution has one for
    each group), with the bias as a last column. Of a parameter that is longer than the matrix,
    the unit has the rows from `weight_first` or `bias_first` on, as attention's projections do.
    """

    name: str
    weight: nn.Parameter
    bias: nn.Parameter | None
    groups: int
    rows: Side
    columns: Side
    #: Which side is that of the layer's input; the other is that of the output's gradient.
    input_side: str = "columns"
    weight_first: int = 0
    bias_first: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """Groups, rows, columns."""
        return self.groups, self.rows.size, self.columns.size

    @property
    def cost(self) -> float:
        """Operations of solving both sides, up to a constant."""
        return sum(
            self.groups * (side.size if side.diagonal else side.size**3)
            for side in (self.rows, self.columns)
        )

    def claims(self) -> list[tuple[nn.Parameter, int]]:
        """The parameters that this unit writes, and from which row on."""
        weight = (self.weight, self.weight_first)
        return [weight] if self.bias is None else [weight, (self.bias, self.bias_first)]

    def has_gradient(self) -> bool:
        """Whether backward has given this unit something to precondition."""
        return all(parameter.grad is not None for parameter, _ in self.claims())

    def gradients(self) -> list[Tensor]:
        """Of weight and bias, as `places` lays them out; see `has_gradient`."""
        return [
            self._part(parameter.grad, first)
            for parameter, first in self.claims()
            if parameter.grad is not None
        ]

    def places(self, matrix: Tensor) -> list[Tensor]:
        """Views of a (groups, rows, columns) matrix in the shapes of `gradients`."""
        shapes = [self._part(p.detach(), first).shape for p, first in self.claims()]
        if self.bias is None:
            return [matrix.view(shapes[0])]
        return [matrix[..., :-1].view(shapes[0]), matrix[..., -1].view(shapes[1])]

    def _part(self, whole: Tensor, first: int) -> Tensor:
        length = self.groups * self.rows.size
        return whole if len(whole) == length else whole.narrow(0, first, length)
