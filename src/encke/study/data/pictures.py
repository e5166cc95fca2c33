"""Image files to tensors, with Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from encke.study.data.arrays import Array
from encke.study.data.errors import BrokenDataError
from encke.study.data.examples import Split
from encke.study.data.locate import package

_ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp"})


def decode(files: Iterable[tuple[str, bytes]]) -> Tensor:
    """Named image files, all of one size, as uint8 (n, 3, rows, columns)."""
    image = package("PIL.Image", distribution="Pillow", reason="reading images")
    decoded: list[Array] = []
    for name, content in files:
        try:
            pixels = np.asarray(image.open(io.BytesIO(content)).convert("RGB"))
        except (OSError, ValueError, SyntaxError) as error:
            raise BrokenDataError(f"image {name} cannot be decoded: {error}") from error
        if decoded and pixels.shape != decoded[0].shape:
            raise BrokenDataError(
                f"image {name} has the shape {pixels.shape}, the first one "
                f"{decoded[0].shape}; all must be equal"
            )
        decoded.append(pixels)
    if not decoded:
        raise BrokenDataError("there is no image to decode")
    return torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).contiguous()


def class_names(folder: Path) -> tuple[str, ...]:
    """The folders in `folder`, sorted: one for each class."""
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))


def read_class_folders(folder: Path, classes: tuple[str, ...]) -> Split:
    """The images in a folder's subfolders, labelled by `classes`, in order of their names."""
    strangers = sorted(set(class_names(folder)) - set(classes))
    if strangers:
        raise BrokenDataError(
            f"{folder} has folders {', '.join(strangers)}, the classes are {', '.join(classes)}"
        )
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(p for p in (folder / name).glob("*") if p.suffix.lower() in _ENDINGS)
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise BrokenDataError(
            f"{folder} has no images in its class folders; allowed are {', '.join(_ENDINGS)}"
        )
    return Split(decode((str(p), p.read_bytes()) for p in paths), torch.tensor(labels))
