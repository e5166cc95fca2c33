"""The 1,797 handwritten digits of 8x8 pixels that scikit-learn brings along."""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from encke.errors import UnsupportedError
from encke.study.data.arrays import Array
from encke.study.data.examples import Examples, Standardise, divide
from encke.study.data.locate import package


@dataclass(frozen=True, kw_only=True, eq=False)
class Enlarge:
    """Standardises, then enlarges to `size` pixels a side."""

    standardise: Standardise
    size: int

    def __call__(self, x: Tensor) -> Tensor:
        return F.interpolate(self.standardise(x), size=(self.size, self.size), mode="bilinear")


def load_digits(
    *, root: str | Path | None = None, test_share: float = 0.2, size: int = 8
) -> Examples:
    """Digits as (n, 1, 8, 8) with values 0 to 16, `size` pixels a side when batches are made.

    `root` is not needed.
    """
    if size < 8:
        raise UnsupportedError(
            f"size is {size}, the digits have 8 pixels a side; give 8 or more"
        )
    images, labels = _read()
    pixels = torch.from_numpy(images).to(torch.uint8).reshape(-1, 1, 8, 8)
    train, test = divide(pixels, torch.from_numpy(labels).long(), test_share=test_share)
    standardise = Standardise.of(train.inputs)
    return Examples(
        name="digits",
        train=train,
        test=test,
        classes=tuple("0123456789"),
        prepare=standardise if size == 8 else Enlarge(standardise=standardise, size=size),
    )


def _read() -> tuple[Array, Array]:
    """Pixels and labels, from scikit-learn's file: importing all of it takes seconds."""
    found = importlib.util.find_spec("sklearn")
    folders = list(found.submodule_search_locations or []) if found is not None else []
    for folder in folders:
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            with gzip.open(path, "rt") as file:
                table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1]
    datasets = package("sklearn.datasets", distribution="scikit-learn", reason="'digits'")
    images, labels = datasets.load_digits(return_X_y=True)
    return images, labels
