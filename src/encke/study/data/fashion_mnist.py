"""Fashion-MNIST: 60,000 and 10,000 pictures of clothes, 28x28 pixels, in ten classes."""

from __future__ import annotations

from pathlib import Path

from encke.study.data.augment import crop_and_flip
from encke.study.data.errors import BrokenDataError
from encke.study.data.examples import Examples, Split, Standardise
from encke.study.data.idx import read_idx
from encke.study.data.locate import folders, inside, missing

_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
#: Where Debian's package puts the files.
_SYSTEM = (Path("/usr/share/datasets/fashion-mnist"),)
_SUBFOLDERS = ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw")
_ADVICE = (
    "On Debian: apt install dataset-fashion-mnist. Elsewhere: download the four "
    "*-ubyte.gz files of github.com/zalandoresearch/fashion-mnist."
)


def load_fashion_mnist(*, root: str | Path | None = None) -> Examples:
    """Images as (n, 1, 28, 28), from the four idx files, gzipped or not."""
    looked = inside(folders(root, system=_SYSTEM), _SUBFOLDERS)
    for folder in looked:
        if _file(folder, "train-images-idx3-ubyte") is not None:
            break
    else:
        raise missing(
            "fashion_mnist", [f / "train-images-idx3-ubyte.gz" for f in looked], _ADVICE
        )
    train, test = _read(folder, "train"), _read(folder, "t10k")
    return Examples(
        name="fashion_mnist",
        train=train,
        test=test,
        classes=_CLASSES,
        prepare=Standardise.of(train.inputs),
        augmentation=crop_and_flip,
    )


def _file(folder: Path, name: str) -> Path | None:
    candidates = (folder / f"{name}.gz", folder / name)
    return next((path for path in candidates if path.is_file()), None)


def _read(folder: Path, prefix: str) -> Split:
    paths = [_file(folder, f"{prefix}-{part}-ubyte") for part in ("images-idx3", "labels-idx1")]
    if paths[0] is None or paths[1] is None:
        raise missing("fashion_mnist", [folder / f"{prefix}-*-ubyte.gz"], _ADVICE)
    images, labels = read_idx(paths[0]), read_idx(paths[1])
    if images.dim() != 3 or labels.shape != images.shape[:1] or bool((labels > 9).any()):
        raise BrokenDataError(
            f"{paths[0]} has the shape {tuple(images.shape)}, {paths[1]} "
            f"{tuple(labels.shape)}; expected are n images and n labels from 0 to 9"
        )
    return Split(images[:, None], labels.long())
