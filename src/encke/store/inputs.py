"""Second moments of a layer's gradient along its inputs: the metric of its errors.

A row e of errors of a weight adds ½ eᵀAe to the loss, with A = Σ SᵀS over the examples and S an
example's gradient of the weight: the Gauss–Newton matrix of a row, on average over the rows.
Watched as torch functions, not as modules: attention's own projections and hand-written layers
are seen too. A weight that is used in other ways as well has no such matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Larger matrices are not made: a weight of so many inputs is rounded to the nearest.
MAX_INPUTS = 6144
_POSITIONS = 1 << 16  # of one call are enough
_TOGETHER = 1 << 24  # values of examples' gradients at a time


@dataclass(kw_only=True)
class InputMoment:
    """The metric of one weight's errors.

    matrices    A, a mean over the rows, one for each group of a convolution
    transposed  whether the weight has its inputs in the first dimension
    """

    matrices: list[Tensor]
    transposed: bool = False


class InputMoments(TorchFunctionMode):
    """Inside, products with the given parameters are noted; their backward adds to `found`."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(p): name for name, p in parameters.items()}
        self.found: dict[str, InputMoment] = {}
        self._spoilt: set[str] = set()
        self._inside = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if not self._inside:
            self._inside = True
            try:
                self._look(func, args, kwargs, found)
            finally:
                self._inside = False
        return found

    def moments(self) -> dict[str, InputMoment]:
        """Of the weights that were used in no other way."""
        return {n: found for n, found in self.found.items() if n not in self._spoilt}

    def divide(self, passes: int, scale: float) -> None:
        """Turn sums over passes into means; `scale` is what the objective has of the loss."""
        for moment in self.found.values():
            moment.matrices = [matrix * (scale / passes) for matrix in moment.matrices]

    def _look(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if func is F.linear and len(args) >= 2:
            self._note(args[1], out, _Product(args[0]))
        elif func in (F.conv1d, F.conv2d, torch.conv1d, torch.conv2d) and len(args) >= 2:
            self._note(args[1], out, _Convolution(*args, **kwargs))
        elif func is torch.addmm and len(args) >= 3:
            self._note(args[2], out, _Product(args[1]), transposed=True)
        elif func in (torch.matmul, Tensor.matmul, Tensor.__matmul__) and len(args) >= 2:
            self._note(args[1], out, _Product(args[0]), transposed=True)
        elif func not in _HARMLESS:
            for value in (*args, *kwargs.values()):
                name = self._names.get(id(value))
                if name is not None:
                    self._spoilt.add(name)

    def _note(
        self, weight: Any, out: Any, call: _Product | _Convolution, *, transposed: bool = False
    ) -> None:
        name = self._names.get(id(weight))
        if name is None or name in self._spoilt:
            return
        inputs = weight.shape[0] if transposed else weight[0].numel()
        if inputs > MAX_INPUTS or weight.ndim < 2 or not out.requires_grad:
            self._spoilt.add(name)
            return

        def add(gradient: Tensor) -> None:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                new = [_metric(x, delta) for x, delta in call.pairs(gradient)]
            self._add(name, new, inputs, transposed)

        out.register_hook(add)

    def _add(self, name: str, new: list[Tensor], inputs: int, transposed: bool) -> None:
        known = self.found.get(name)
        if any(matrix.shape[0] != inputs for matrix in new):
            self._spoilt.add(name)
        elif known is None:
            self.found[name] = InputMoment(matrices=new, transposed=transposed)
        elif known.transposed != transposed or len(known.matrices) != len(new):
            self._spoilt.add(name)
        else:
            for matrix, more in zip(known.matrices, new, strict=True):
                matrix += more


def _metric(x: Tensor, delta: Tensor) -> Tensor:
    """Σ SᵀS over examples, S = δᵀx, divided by the rows; in the cheaper of two orders.

    x      (examples, positions, inputs)
    delta  (examples, positions, outputs)
    """
    every = x.shape[0]
    x, delta = (t[: max(1, _POSITIONS // max(1, t.shape[1]))] for t in (x, delta))
    count, positions, inputs = x.shape
    outputs = delta.shape[2]
    total = torch.zeros(inputs, inputs, dtype=torch.float64)
    through = positions * positions < outputs * inputs
    size = positions * max(positions, inputs) if through else outputs * inputs
    height = max(1, _TOGETHER // max(1, size))
    for start in range(0, count, height):
        a, d = x[start : start + height].float(), delta[start : start + height].float()
        if positions == 1:
            rows = a[:, 0] * torch.linalg.vector_norm(d[:, 0], dim=1, keepdim=True)
        elif through:  # xᵀ (δδᵀ) x
            gram = d @ d.transpose(1, 2)
            total += torch.einsum("npk,npl->kl", a, gram @ a).double().cpu()
            continue
        else:
            rows = (d.transpose(1, 2) @ a).reshape(-1, inputs)
        total += (rows.T @ rows).double().cpu()
    return total * (every / max(1, count) / max(1, outputs))


class _Product:
    """x @ weight.T, or x @ weight; the first dimension of x tells examples apart."""

    def __init__(self, x: Tensor) -> None:
        self._x = x.detach()

    def pairs(self, gradient: Tensor) -> list[tuple[Tensor, Tensor]]:
        x, delta = self._x, gradient
        examples = x.shape[0] if x.ndim > 2 else x.numel() // max(1, x.shape[-1])
        return [
            (
                x.reshape(examples, -1, x.shape[-1]),
                delta.reshape(examples, -1, delta.shape[-1]),
            )
        ]


class _Convolution:
    """A convolution in one or two dimensions, as a product with patches."""

    def __init__(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> None:
        self._alone = input.ndim != weight.ndim
        self._flat = weight.ndim == 3
        self._x = input.detach()
        self._kernel = (1, *weight.shape[2:]) if self._flat else tuple(weight.shape[2:])
        self._stride = _pair(stride, 1, self._flat)
        self._dilation = _pair(dilation, 1, self._flat)
        self._padding, self._groups = padding, groups

    def pairs(self, gradient: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Patches and gradients of each group; no more examples than are used."""
        x, delta = (t.unsqueeze(0) if self._alone else t for t in (self._x, gradient))
        if self._flat:
            x, delta = x.unsqueeze(2), delta.unsqueeze(2)
        margin = (0, 0)
        if self._padding == "same":
            spread = zip(self._dilation, self._kernel, strict=True)
            total = [d * (k - 1) for d, k in spread]
            x = F.pad(x, [side for t in reversed(total) for side in (t // 2, t - t // 2)])
        elif self._padding != "valid":
            margin = _pair(self._padding, 0, self._flat)
        found = []
        for part, after in zip(
            x.chunk(self._groups, 1), delta.chunk(self._groups, 1), strict=True
        ):
            patches = F.unfold(
                part, self._kernel, dilation=self._dilation, padding=margin, stride=self._stride
            )
            found.append((patches.transpose(1, 2), after.flatten(2).transpose(1, 2)))
        return found


def _pair(value: Any, neutral: int, flat: bool) -> tuple[int, int]:
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if flat:
        return (neutral, int(given[0]))
    return (int(given[0]), int(given[-1]))


_LOOKED_AT = ("shape", "dtype", "device", "requires_grad", "ndim", "is_cuda", "data", "grad")
#: Functions that only look at a parameter.
_HARMLESS: frozenset[Any] = frozenset(
    {
        *(getattr(Tensor, name).__get__ for name in _LOOKED_AT),
        Tensor.size,
        Tensor.dim,
        Tensor.numel,
        Tensor.is_floating_point,
        Tensor.is_contiguous,
    }
)
