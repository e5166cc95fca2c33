"""Weights that are mostly zero: where the others are, and what they are.

Positions are coded with the densities of their row and their column as context: the bits of
all places whose expected density lies in one octave form a sequence, coded by its frequency.
Rows and columns that are empty take no bits. Values are multiples of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.store.blobs import BlobWriter, chunks_of
from encke.store.logarithm import as_rows

#: A share of zeros from which positions are kept apart from values.
MOSTLY = 0.5
#: Octaves of density that are told apart: a quarter and more, …, a 64th and less.
CLASSES, _FIRST = 5, 2
_EMPTY = -100.0  # the code of a row or column without any value
_STEPS = 2.0  # codes of a density to an octave
Reader = Callable[[object, int], Tensor]


def is_pruned(x: Tensor) -> bool:
    """Whether most values of a matrix are zero."""
    if x.ndim < 2 or x.numel() == 0:
        return False
    return int((x == 0).sum()) > MOSTLY * x.numel()


def _density_codes(share: Tensor, whole: float) -> Tensor:
    relative = torch.log2(share.double().clamp(min=1e-300) / max(whole, 1e-300))
    codes = torch.round(relative * _STEPS).clamp(-60, 60)
    return torch.where(share > 0, codes, _EMPTY).to(torch.float32)


def _classes(rows: Tensor, columns: Tensor, whole: float) -> Tensor:
    """The octave of each place's expected density; −1 where nothing can be."""
    octave = (rows[:, None] + columns) / _STEPS + math.log2(max(whole, 1e-9))
    found = (-torch.round(octave) - _FIRST).clamp(0, CLASSES - 1).to(torch.int8)
    empty = (rows <= _EMPTY)[:, None] | (columns <= _EMPTY)
    return torch.where(empty, torch.tensor(-1, dtype=torch.int8), found)


def encode(x: Tensor, codes: Tensor, step: float, error: float, sink: BlobWriter) -> Any:
    """The entry of x; `codes` are those of its values that are not zero, in order."""
    mask = as_rows(x.cpu() != 0)
    share = float(mask.float().mean())
    rows = _density_codes(mask.float().mean(1), share)
    columns = _density_codes(mask.float().mean(0), share)
    entry: dict[str, Any] = {
        "how": "pruned",
        "step": step,
        "error": error,
        "kept": int(mask.sum()),
        "density": share,
        "rows": sink.codes([rows], rows.numel()),
        "columns": sink.codes([columns], columns.numel()),
        "blob": sink.codes(chunks_of(codes), codes.numel()),
    }
    classes = _classes(rows, columns, share)
    for number in range(CLASSES):
        here = mask[classes == number]
        if here.numel():
            entry[f"mask{number}"] = sink.codes(chunks_of(here.float()), here.numel())
    return entry


def decode(
    entry: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype, read: Reader
) -> Tensor:
    """The tensor of an entry; `read(blob, count)` gives a blob of codes."""
    step, share, kept = (entry.get(key) for key in ("step", "density", "kept"))
    whole = math.prod(shape)
    if (
        not isinstance(step, float)
        or not isinstance(share, float)
        or not 0.0 <= share <= 1.0
        or type(kept) is not int
        or not 0 <= kept <= whole
        or len(shape) < 2
        or whole == 0
        or not dtype.is_floating_point
    ):
        raise CorruptStreamError("a pruned tensor has no step, density or shape")
    height, width = shape[0], whole // shape[0]
    rows, columns = read(entry.get("rows"), height), read(entry.get("columns"), width)
    values = read(entry.get("blob"), kept)  # checked before a matrix of the claimed size
    classes = _classes(rows, columns, share)
    mask = torch.zeros(height, width, dtype=torch.bool)
    for number in range(CLASSES):
        here = classes == number
        count = int(here.sum())
        if count:
            mask[here] = read(entry.get(f"mask{number}"), count) > 0.5
    if int(mask.sum()) != kept:
        raise CorruptStreamError("a pruned tensor has other positions than values")
    out = torch.zeros(height, width, dtype=dtype)
    out[mask] = (values.double() * step).to(dtype)
    return out.view(shape)
