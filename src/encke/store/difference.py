"""How far two stored states lie apart."""

from __future__ import annotations

from typing import Any

import torch

from encke.store.reader import StateReader


def differences(one: StateReader, other: StateReader) -> list[dict[str, Any]]:
    """For each tensor of either file: largest and root-mean-square difference, or a remark."""
    names = dict.fromkeys([*one.names, *other.names])
    return [_row(name, one, other) for name in names]


def _row(name: str, one: StateReader, other: StateReader) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "remark": ""}
    for stored, rest in ((one, other), (other, one)):
        if name not in stored.names:
            return row | {"remark": f"only in {rest.path}"}
    a, b = one.tensor(name), other.tensor(name)
    if a.shape != b.shape or a.dtype != b.dtype:
        return row | {"remark": f"{list(a.shape)} {a.dtype} and {list(b.shape)} {b.dtype}"}
    if a.numel() == 0 or a.is_complex():
        return row | {"remark": "equal" if torch.equal(a, b) else "differs"}
    apart = (a.double() - b.double()).abs()
    rms = float(apart.square().mean().sqrt())
    size = float(a.double().square().mean().sqrt())
    relative = rms / size if size else 0.0
    return row | {"largest": float(apart.max()), "rms": rms, "relative": relative}
