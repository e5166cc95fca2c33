"""The sources by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from encke.errors import UnsupportedError
from encke.study.data.cifar10 import load_cifar10
from encke.study.data.climate import load_climate
from encke.study.data.digits import load_digits
from encke.study.data.fashion_mnist import load_fashion_mnist
from encke.study.data.graphs import load_cora, load_squirrel
from encke.study.data.jets import load_jets
from encke.study.data.source import Source
from encke.study.data.synthetic import load_synthetic
from encke.study.data.text import load_text

Loader = Callable[..., Source]
#: Among a source's options, it stands for every other one.
ANY = "**"

_LOADERS: dict[str, Loader] = {
    "digits": load_digits,
    "fashion_mnist": load_fashion_mnist,
    "cifar10": load_cifar10,
    "text": load_text,
    "climate": load_climate,
    "jets": load_jets,
    "cora": load_cora,
    "squirrel": load_squirrel,
    "synthetic": load_synthetic,
}


def names() -> tuple[str, ...]:
    """Every source there is, whether or not its data is.

    >>> "cifar10" in names()
    True
    """
    return tuple(_LOADERS)


def register(name: str, loader: Loader) -> None:
    """Adds a source under a name that is still free.

    `loader` is called with `root=` as given to `load`, and with the options as keywords. It
    returns a `Source`, for instance `Examples` of tensors.
    """
    if name in _LOADERS:
        raise UnsupportedError(f"there is a source {name!r} already; give yours another name")
    _LOADERS[name] = loader


def load(name: str, *, root: str | Path | None = None, **given: Any) -> Source:
    """The source called `name`, read from `root` or else the folder in ENCKE_DATA."""
    allowed = options(name)
    unknown = sorted(given.keys() - allowed)
    if unknown and ANY not in allowed:
        raise UnsupportedError(
            f"source {name!r} was given {', '.join(unknown)}, its options are "
            f"{', '.join(allowed) or 'none'}"
        )
    return _LOADERS[name](root=root, **given)


def options(name: str) -> list[str]:
    """The names of a source's options; `ANY` is among them if it takes any.

    >>> options("cora")
    ['kind']
    """
    if name not in _LOADERS:
        raise UnsupportedError(f"source is {name!r}, there are {', '.join(_LOADERS)}")
    parameters = inspect.signature(_LOADERS[name]).parameters.values()
    return [ANY if p.kind is p.VAR_KEYWORD else p.name for p in parameters if p.name != "root"]
