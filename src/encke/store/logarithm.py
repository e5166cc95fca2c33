"""Second moments: kept as logarithms, less a factor for each row and each column.

An absolute bound would let small values decode to zero or below, and an optimizer divides by
their root. In the logarithm a bound is a factor, and no value can change its sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.store.blobs import LARGEST_CODE, BlobWriter, joined

#: The code of a zero. No other code is below it.
ZERO = -LARGEST_CODE
_FACTOR_STEP = 0.25  # of the factors of rows and columns, in powers of two
_LARGEST = LARGEST_CODE - 1
_BLOCK = 1 << 18  # values at a time: they stay in a cache
_SAMPLE = 256  # values that tell the mean of a row or a column
Reader = Callable[[object, int], Tensor]


def takes(x: Tensor, factor: float) -> bool:
    """Whether x can be kept within a factor: finite, nowhere negative, not too wide a range."""
    if not x.is_floating_point() or x.numel() == 0 or x.dtype == torch.float64:
        return False
    low, high = (float(value) for value in torch.aminmax(x))
    if low < 0 or not math.isfinite(high):
        return False
    widest = 300.0  # powers of two between any two values of 32 bits, and a little more
    if 2.0 * math.log2(factor) * _LARGEST > widest:
        return True
    smallest = float(torch.where(x > 0, x, high).min()) if high > 0 else 1.0
    reach = max(abs(math.log2(smallest)), abs(math.log2(high or 1.0))) + 1.0
    return 2.0 * math.log2(factor) * (_LARGEST - 1) > reach


def as_rows(x: Tensor) -> Tensor:
    """x as a matrix: its first dimension, and all others in one."""
    return x.reshape(x.shape[0], -1) if x.ndim > 1 else x.reshape(1, -1)


def _arithmetic(step: float) -> torch.dtype:
    """Single precision where a rounding of 2⁻¹⁷ in the logarithm is nothing to the step."""
    return torch.float32 if step > 0.05 else torch.float64


def step_of(factor: float) -> float:
    """The step of logarithms that stay within a factor, roundings included."""
    step = 2.0 * math.log2(factor)
    return step * (1.0 - (5e-4 if step > 0.051 else 1e-6))


def _blocks(x: Tensor) -> Iterator[tuple[int, Tensor]]:
    rows = as_rows(x)
    height = max(1, _BLOCK // max(1, rows.shape[1]))
    for start in range(0, rows.shape[0], height):
        yield start, rows[start : start + height].cpu()


def _mean_log(part: Tensor, dimension: int) -> Tensor:
    live = part > 0
    logs = torch.log2(torch.where(live, part, 1.0).float())
    return logs.sum(dimension) / live.sum(dimension).clamp(min=1)


def _factors(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of each row's and each column's mean logarithm, from a sample of its values."""
    matrix = as_rows(x)
    few, narrow = (matrix[:: max(1, matrix.shape[0] // _SAMPLE)],
                   matrix[:, :: max(1, matrix.shape[1] // _SAMPLE)])  # fmt: skip
    rows, columns = _mean_log(narrow, 1).cpu(), _mean_log(few, 0).cpu()
    columns = columns - columns.mean()
    return torch.round(rows / _FACTOR_STEP), torch.round(columns / _FACTOR_STEP)


def encode(
    x: Tensor, factor: float, sink: BlobWriter, *, factored: bool, base: Tensor | None = None
) -> tuple[dict[str, Any], Tensor]:
    """The entry, and what will be decoded.

    base  what a delta is counted from; zero in the same places as x
    """
    step = step_of(factor)
    kind = _arithmetic(step)
    decoded = torch.empty(as_rows(x).shape, dtype=x.dtype)
    entry: dict[str, Any] = {"how": "logarithm", "step": step, "factor": factor}
    rows = columns = None
    if factored and base is None and x.ndim > 1 and min(as_rows(x).shape) > 8:
        rows, columns = _factors(x)
        entry["rows"] = sink.codes([rows.to(torch.float32)], rows.numel())
        entry["columns"] = sink.codes([columns.to(torch.float32)], columns.numel())
    bases = None if base is None else as_rows(base)

    def chunks() -> Iterator[Tensor]:
        for start, block in _blocks(x):
            here = slice(start, start + block.shape[0])
            origin = _origin(rows, columns, bases, here, kind)
            codes = torch.log2(block.to(kind)).sub_(origin).mul_(1.0 / step).round_()
            codes.clamp_(ZERO, _LARGEST)  # the logarithm of a zero is −inf
            _values_into(decoded[here], codes, origin, step)
            yield codes.to(torch.float32).view(-1)

    entry["blob"] = sink.codes(joined(chunks()), x.numel())
    return entry, decoded.view(x.shape)


def rounded(x: Tensor, factor: float) -> Tensor:
    """What would be decoded of x, without factors of rows and columns."""
    step = step_of(factor)
    codes = torch.log2(x.to(_arithmetic(step))).mul_(1.0 / step).round_()
    codes.clamp_(ZERO, _LARGEST)
    out = torch.empty_like(x)
    _values_into(out, codes, torch.zeros((), dtype=codes.dtype), step)
    return out


def _origin(
    rows: Tensor | None,
    columns: Tensor | None,
    base: Tensor | None,
    here: slice,
    kind: torch.dtype,
) -> Tensor:
    if base is not None:
        part = base[here].to(kind)
        return torch.log2(torch.where(part > 0, part, 1.0))
    if rows is None or columns is None:
        return torch.zeros((), dtype=kind)
    both: Tensor = rows[here, None].to(kind) + columns.to(kind)
    return both * _FACTOR_STEP


def _values_into(out: Tensor, codes: Tensor, origin: Tensor, step: float) -> None:
    limits = torch.finfo(out.dtype)
    values = torch.add(origin, codes, alpha=step).exp2_().clamp_(limits.tiny, limits.max)
    out.copy_(values.masked_fill_(codes <= ZERO, 0.0))


def decode(
    entry: dict[str, Any],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    read: Reader,
    base: Tensor | None,
) -> Tensor:
    """The tensor of an entry; `read(blob, count)` gives a blob of codes."""
    step = entry.get("step")
    if not dtype.is_floating_point or not isinstance(step, float) or not math.isfinite(step):
        raise CorruptStreamError("a logarithm has no step, or a dtype that it cannot have")
    count = math.prod(shape)
    codes = read(entry.get("blob"), count)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    out = torch.empty(shape, dtype=dtype)
    matrix, grid = as_rows(out), as_rows(codes.view(shape))
    rows = columns = None
    if base is None and "rows" in entry:
        rows = read(entry["rows"], matrix.shape[0])
        columns = read(entry.get("columns"), matrix.shape[1])
    bases = None if base is None else as_rows(base)
    kind = _arithmetic(step)
    height = max(1, _BLOCK // max(1, matrix.shape[1]))
    for start in range(0, matrix.shape[0], height):
        here = slice(start, start + height)
        origin = _origin(rows, columns, bases, here, kind)
        _values_into(matrix[here], grid[here].to(kind), origin, step)
    return out
