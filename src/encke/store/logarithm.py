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
from encke.store.blobs import LARGEST_CODE, PART, BlobWriter

#: The code of a zero. No other code is below it.
ZERO = -LARGEST_CODE
_FACTOR_STEP = 0.25  # of the factors of rows and columns, in powers of two
_LARGEST = LARGEST_CODE - 1
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


def _logs(rows: Tensor) -> Tensor:
    """log2, with −inf for zeros, in float64."""
    return torch.log2(rows.to(torch.float64))


def _blocks(x: Tensor) -> Iterator[tuple[int, Tensor]]:
    rows = as_rows(x)
    height = max(1, PART // max(1, rows.shape[1]))
    for start in range(0, rows.shape[0], height):
        yield start, rows[start : start + height].cpu()


def _factors(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of each row's and each column's mean logarithm, of the values that are not zero."""
    shape = as_rows(x).shape
    sums, counts = torch.zeros(shape[0], dtype=torch.float64), torch.zeros(shape[0])
    for start, block in _blocks(x):
        logs, live = _logs(block), block > 0
        here = slice(start, start + block.shape[0])
        sums[here] = torch.where(live, logs, 0.0).sum(1)
        counts[here] = live.sum(1).to(torch.float32)
    rows = torch.round(sums / counts.clamp(min=1) / _FACTOR_STEP)
    sums, counts = torch.zeros(shape[1], dtype=torch.float64), torch.zeros(shape[1])
    for start, block in _blocks(x):
        live = block > 0
        left = _logs(block) - rows[start : start + block.shape[0], None] * _FACTOR_STEP
        sums += torch.where(live, left, 0.0).sum(0)
        counts += live.sum(0)
    columns = torch.round(sums / counts.clamp(min=1) / _FACTOR_STEP)
    return rows, columns


def encode(
    x: Tensor, factor: float, sink: BlobWriter, *, factored: bool, base: Tensor | None = None
) -> tuple[dict[str, Any], Tensor]:
    """The entry, and what will be decoded.

    base  what a delta is counted from; zero in the same places as x
    """
    step = 2.0 * math.log2(factor) * (1.0 - 1e-6)
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
            origin = _origin(rows, columns, bases, here)
            codes = torch.round((_logs(block) - origin) / step)
            codes = torch.where(block > 0, codes.clamp(-_LARGEST, _LARGEST), float(ZERO))
            decoded[here] = _values(codes, origin, step, x.dtype)
            yield codes.to(torch.float32).view(-1)

    entry["blob"] = sink.codes(chunks(), x.numel())
    return entry, decoded.view(x.shape)


def _origin(
    rows: Tensor | None, columns: Tensor | None, base: Tensor | None, here: slice
) -> Tensor:
    if base is not None:
        part = base[here].to(torch.float64)
        return torch.log2(torch.where(part > 0, part, 1.0))
    if rows is None or columns is None:
        return torch.zeros((), dtype=torch.float64)
    both: Tensor = rows[here, None].to(torch.float64) + columns.to(torch.float64)
    return both * _FACTOR_STEP


def _values(codes: Tensor, origin: Tensor, step: float, dtype: torch.dtype) -> Tensor:
    values = torch.exp2(codes.to(torch.float64) * step + origin)
    limits = torch.finfo(dtype)
    values = values.clamp(limits.tiny, limits.max).to(dtype)
    return torch.where(codes == ZERO, torch.zeros((), dtype=dtype), values)


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
    height = max(1, PART // max(1, matrix.shape[1]))
    for start in range(0, matrix.shape[0], height):
        here = slice(start, start + height)
        origin = _origin(rows, columns, bases, here)
        matrix[here] = _values(grid[here], origin, step, dtype)
    return out
