"""The 1,797 handwritten digits of 8x8 pixels that scikit-learn brings along."""

from __future__ import annotations

from pathlib import Path

import torch

from encke.study.data.examples import Examples, Standardise, divide
from encke.study.data.locate import package


def load_digits(*, root: str | Path | None = None, test_share: float = 0.2) -> Examples:
    """Digits as (n, 1, 8, 8) with values 0 to 16. `root` is not needed."""
    datasets = package("sklearn.datasets", distribution="scikit-learn", reason="'digits'")
    images, labels = datasets.load_digits(return_X_y=True)
    pixels = torch.from_numpy(images).to(torch.uint8).reshape(-1, 1, 8, 8)
    train, test = divide(pixels, torch.from_numpy(labels).long(), test_share=test_share)
    return Examples(
        name="digits",
        train=train,
        test=test,
        classes=tuple("0123456789"),
        prepare=Standardise.of(train.inputs),
    )
