"""Second moments of what each weight is multiplied with: XᵀX of linear and convolution layers.

Watched as torch functions, not as modules: attention's own projections and hand-written layers
are seen too. A weight that is multiplied in other ways as well has no such matrix.
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
_ROWS = 1 << 14  # rows of X from one call are enough


@dataclass(kw_only=True)
class InputMoment:
    """What is known of the inputs of one weight.

    matrices    XᵀX, one for each group of a convolution
    transposed  whether the weight has its inputs in the first dimension
    """

    matrices: list[Tensor]
    transposed: bool = False


class InputMoments(TorchFunctionMode):
    """Inside, products with the given parameters add to their input's second moment."""

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
        if not self._inside:
            self._inside = True
            try:
                self._look(func, args, kwargs)
            finally:
                self._inside = False
        return func(*args, **kwargs)

    def moments(self) -> dict[str, InputMoment]:
        """Of the weights that were used in no other way."""
        return {n: found for n, found in self.found.items() if n not in self._spoilt}

    def _look(self, func: Any, args: Any, kwargs: Any) -> None:
        if func is F.linear and len(args) >= 2:
            self._add(args[1], lambda: [_rows(args[0])])
        elif func in (F.conv1d, F.conv2d, torch.conv1d, torch.conv2d) and len(args) >= 2:
            self._add(args[1], lambda: _patches(*args, **kwargs))
        elif func is torch.addmm and len(args) >= 3:
            self._add(args[2], lambda: [_rows(args[1])], transposed=True)
        elif func in (torch.matmul, Tensor.matmul, Tensor.__matmul__) and len(args) >= 2:
            self._add(args[1], lambda: [_rows(args[0])], transposed=True)
        elif func not in _HARMLESS:
            for value in (*args, *kwargs.values()):
                name = self._names.get(id(value))
                if name is not None:
                    self._spoilt.add(name)

    def _add(self, weight: Any, rows: Any, *, transposed: bool = False) -> None:
        name = self._names.get(id(weight))
        if name is None or name in self._spoilt:
            return
        inputs = weight.shape[0] if transposed else weight[0].numel()
        if inputs > MAX_INPUTS or weight.ndim < 2:
            self._spoilt.add(name)
            return
        with torch.no_grad():
            new = [(x.T @ x).double() for x in (r.detach().float() for r in rows())]
        if any(matrix.shape[0] != inputs for matrix in new):
            self._spoilt.add(name)
            return
        known = self.found.get(name)
        if known is None:
            self.found[name] = InputMoment(matrices=new, transposed=transposed)
        else:
            for matrix, more in zip(known.matrices, new, strict=True):
                matrix += more


def _rows(x: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    return flat[:: max(1, flat.shape[0] // _ROWS)]


def _patches(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> list[Tensor]:
    """The inputs of each output position, for each group."""
    flat = weight.ndim == 3
    batched = input if input.ndim == weight.ndim else input.unsqueeze(0)
    if flat:
        batched, weight = batched.unsqueeze(2), weight.unsqueeze(2)
    kernel = tuple(weight.shape[2:])
    step, spread = (_pair(value, 1, flat) for value in (stride, dilation))
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(spread, kernel, strict=True)]
        sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
        batched, margin = F.pad(batched, sides), (0, 0)
    else:
        margin = _pair(padding, 0, flat)
    positions = batched.shape[2] * batched.shape[3]
    few = batched[: max(1, 4 * _ROWS // max(1, positions))]
    found = []
    for group in few.chunk(groups, dim=1):
        columns = F.unfold(group, kernel, dilation=spread, padding=margin, stride=step)
        found.append(_rows(columns.transpose(1, 2)))
    return found


def _pair(value: Any, neutral: int, flat: bool) -> tuple[int, int]:
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if flat:
        return (neutral, int(given[0]))
    return (int(given[0]), int(given[-1]))


#: Functions that only look at a parameter.
_HARMLESS = frozenset(
    {
        Tensor.shape.__get__,  # type: ignore[attr-defined]
        Tensor.dtype.__get__,  # type: ignore[attr-defined]
        Tensor.device.__get__,  # type: ignore[attr-defined]
        Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
        Tensor.ndim.__get__,  # type: ignore[attr-defined]
        Tensor.is_cuda.__get__,  # type: ignore[attr-defined]
        Tensor.data.__get__,  # type: ignore[attr-defined]
        Tensor.size,
        Tensor.dim,
        Tensor.numel,
        Tensor.is_floating_point,
        Tensor.is_contiguous,
        torch.is_autocast_enabled,
    }
)
