"""CIFAR-10: 50,000 and 10,000 pictures of 32x32 pixels in ten classes, in three formats."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from encke.study.data.arrays import Array, read_npz
from encke.study.data.augment import crop_and_flip
from encke.study.data.errors import BrokenDataError
from encke.study.data.examples import Examples, Split, Standardise
from encke.study.data.locate import folders, inside, missing
from encke.study.data.pictures import class_names, decode, read_class_folders

_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_SUBFOLDERS = ("cifar10", "cifar-10", "cifar-10-batches-bin")
_RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes
_ADVICE = (
    "Download the binary version (cifar-10-binary.tar.gz) from www.cs.toronto.edu/~kriz/"
    "cifar.html and unpack it; folders train/<class>/ and test/<class>/ of images do as well."
)

_Stamp = tuple[int, ...]
_Limits = tuple[int | None, int | None]  # of the train and the test split
_Content = tuple[Split, Split, tuple[str, ...]]


def load_cifar10(
    *, root: str | Path | None = None, train: int | None = None, test: int | None = None
) -> Examples:
    """Images as (n, 3, 32, 32), from the first format that is found.

    `train` and `test` limit how many are read, which takes most of the time.

    Formats: `data_batch_*.bin` and `test_batch.bin`; `cifar10_jpeg.npz`; or `train/` and
    `test/` with a folder of images for each class. The last two need Pillow; what it has
    decoded stays in memory for later calls.
    """
    looked = []
    for folder in inside(folders(root), _SUBFOLDERS):
        for marker, read in _FORMATS.items():
            path = folder / marker
            looked.append(path)
            if path.exists():
                trained, tested, classes = read(path, _stamp(path), (train, test))
                whole = Examples(
                    name="cifar10",
                    train=trained,
                    test=tested,
                    classes=classes,
                    prepare=Standardise.of(trained.inputs),
                    augmentation=crop_and_flip,
                )
                limited = train is not None or test is not None
                return whole.head(train=train, test=test) if limited else whole
    raise missing("cifar10", looked, _ADVICE)


def _stamp(path: Path) -> _Stamp:
    """When what `path` stands for last changed, so that a cache does not outlive its files."""
    folders_of_classes = (*path.glob("*"), *path.parent.glob("test/*")) if path.is_dir() else ()
    return tuple(p.stat().st_mtime_ns for p in (path, *sorted(folders_of_classes)))


def _read_binary(first: Path, _stamped: _Stamp, _limits: _Limits) -> _Content:
    folder = first.parent
    parts = [_records(path) for path in sorted(folder.glob("data_batch_*.bin"))]
    train = Split(*(torch.cat(column) for column in zip(*parts, strict=True)))
    tests = folder / "test_batch.bin"
    if not tests.is_file():
        raise missing("cifar10", [tests], _ADVICE)
    return train, _records(tests), _CLASSES


def _records(path: Path) -> Split:
    raw = np.fromfile(path, dtype=np.uint8)
    if raw.size == 0 or raw.size % _RECORD:
        raise BrokenDataError(f"{path} has {raw.size} bytes, not a multiple of {_RECORD}")
    records = torch.from_numpy(raw).reshape(-1, _RECORD)
    labels = records[:, 0].long()
    if int(labels.max()) > 9:
        raise BrokenDataError(f"{path} has the label {int(labels.max())}, allowed are 0 to 9")
    return Split(records[:, 1:].reshape(-1, 3, 32, 32).contiguous(), labels)


@functools.lru_cache(maxsize=1)
def _read_jpeg(path: Path, _stamped: _Stamp, limits: _Limits) -> _Content:
    fields = ("jpeg", "offsets", "labels")
    required = tuple(f"{split}_{field}" for split in ("train", "test") for field in fields)
    arrays = read_npz(path, (*required, "classes"))
    classes = tuple(str(name) for name in arrays["classes"])
    train, test = (
        _jpeg_split(path, split, *(arrays[f"{split}_{field}"] for field in fields), limit=limit)
        for split, limit in zip(("train", "test"), limits, strict=True)
    )
    for split in (train, test):
        if int(split.target.max()) >= len(classes):
            raise BrokenDataError(f"{path} has a label beyond its {len(classes)} classes")
    return train, test, classes


def _jpeg_split(
    path: Path, split: str, content: Array, offsets: Array, labels: Array, *, limit: int | None
) -> Split:
    ends = offsets.tolist()
    ascending = all(a < b for a, b in pairwise(ends))
    if (
        len(ends) != len(labels) + 1
        or ends[0] != 0
        or ends[-1] != len(content)
        or not ascending
    ):
        raise BrokenDataError(
            f"{path}: {split}_offsets must ascend from 0 to the {len(content)} bytes of "
            f"{split}_jpeg, one more than the {len(labels)} labels"
        )
    labels = labels[:limit]
    raw = content[: ends[len(labels)]].tobytes()
    images = decode(
        (f"{i} of {split} in {path}", raw[ends[i] : ends[i + 1]]) for i in range(len(labels))
    )
    return Split(images, torch.from_numpy(labels.astype(np.int64)))


@functools.lru_cache(maxsize=1)
def _read_folders(train: Path, _stamped: _Stamp, _limits: _Limits) -> _Content:
    test = train.parent / "test"
    if not test.is_dir():
        raise missing("cifar10", [test], _ADVICE)
    classes = class_names(train)
    return read_class_folders(train, classes), read_class_folders(test, classes), classes


#: What a folder must hold → how it is read.
_FORMATS: dict[str, Callable[[Path, _Stamp, _Limits], _Content]] = {
    "data_batch_1.bin": _read_binary,
    "cifar10_jpeg.npz": _read_jpeg,
    "train": _read_folders,
}
