"""The families by name."""

from __future__ import annotations

from typing import Any

from torch import nn

from encke.errors import UnsupportedError
from encke.study.zoo import alexnet, gpt, graph, mlp, resnet, resnet_cifar, unet, vgg, vit
from encke.study.zoo.model import Family, Model

_FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        mlp.FAMILY,
        alexnet.FAMILY,
        vgg.FAMILY,
        resnet.RESNET18,
        resnet.RESNET50,
        resnet_cifar.FAMILY,
        gpt.FAMILY,
        vit.FAMILY,
        graph.GCN,
        graph.GRAPHSAGE,
        unet.FAMILY,
    )
}


def names() -> tuple[str, ...]:
    """Every model there is.

    >>> "resnet50" in names()
    True
    """
    return tuple(_FAMILIES)


def register(family: Family) -> None:
    """Adds a family under a name that is still free."""
    if family.name in _FAMILIES:
        raise UnsupportedError(
            f"there is a model {family.name!r} already; give yours another name"
        )
    _FAMILIES[family.name] = family


def model(name: str, **options: Any) -> Model:
    """The model called `name`, with the given options and the defaults of the others.

    >>> model("vit_tiny", patch=4, size=32, classes=10).options["dim"]
    192
    """
    if name not in _FAMILIES:
        raise UnsupportedError(f"model is {name!r}, there are {', '.join(_FAMILIES)}")
    return Model(family=_FAMILIES[name], options=options)


def build(name: str, *, seed: int | None = None, **options: Any) -> nn.Module:
    """A new network: `model(name, **options).build(seed=seed)`."""
    return model(name, **options).build(seed=seed)
