"""Calorimeter images of jets: those of top quarks against those of light ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from encke.study.data.arrays import read_npz
from encke.study.data.errors import BrokenDataError
from encke.study.data.examples import Examples, divide
from encke.study.data.locate import first_file

_CLASSES = ("qcd", "top")
_ADVICE = "Make jets.npz of float32 arrays `qcd` and `top` (n, rows, columns) of energies."


@dataclass(frozen=True, kw_only=True)
class LogScale:
    """log(1 + x), scaled to a mean square of one. Zeros stay zeros: most pixels are."""

    unit: float

    @classmethod
    def of(cls, x: Tensor) -> LogScale:
        """With the root mean square of log(1 + x)."""
        return cls(unit=float(x.log1p().square().mean().sqrt().clamp_min(1e-12)))

    def __call__(self, x: Tensor) -> Tensor:
        return x.log1p() / self.unit


def load_jets(*, root: str | Path | None = None, test_share: float = 0.2) -> Examples:
    """Images as (n, 1, rows, columns), energies stored as they are; label 1 is top."""
    path = first_file("jets", "jets.npz", root, subfolders=("jets",), advice=_ADVICE)
    arrays = read_npz(path, _CLASSES)
    parts = [torch.from_numpy(arrays[name]).float() for name in _CLASSES]
    if any(part.dim() != 3 or part.shape[1:] != parts[0].shape[1:] for part in parts):
        raise BrokenDataError(
            f"{path} has the shapes {', '.join(str(tuple(p.shape)) for p in parts)}; expected "
            "are images (n, rows, columns) of one size"
        )
    if any(bool((part < 0).any()) for part in parts):
        raise BrokenDataError(f"{path} has negative energies")
    labels = torch.cat([torch.full((len(p),), label) for label, p in enumerate(parts)])
    train, test = divide(torch.cat(parts)[:, None], labels, test_share=test_share)
    return Examples(
        name="jets",
        train=train,
        test=test,
        classes=_CLASSES,
        prepare=LogScale.of(train.inputs),
    )
