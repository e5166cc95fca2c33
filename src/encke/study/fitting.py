"""Which networks go with which data, and what a network takes over from its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from encke.study.cells import Part
from encke.study.data import Graph, Source, Text
from encke.study.errors import StudyError

#: What the networks and the sources of this package are about; those of users are not checked.
_NETWORKS = {
    **dict.fromkeys(
        ("mlp", "alexnet", "vgg16", "resnet18", "resnet50", "resnet_cifar", "vit_tiny"),
        "images",
    ),
    "gpt": "text",
    "gcn": "graphs",
    "graphsage": "graphs",
    "unet": "fields",
}
_SOURCES = {
    **dict.fromkeys(("digits", "fashion_mnist", "cifar10", "jets"), "images"),
    "text": "text",
    "cora": "graphs",
    "squirrel": "graphs",
    "climate": "fields",
}


def check_fit(model: Part, data: Part) -> None:
    """Raise where a network of the zoo cannot be trained on a data set.

    >>> check_fit(Part(name="gpt", of="gpt"), Part(name="text", of="text"))
    """
    wanted, there = _NETWORKS.get(model.of), _SOURCES.get(data.of)
    if wanted and there and wanted != there:
        raise StudyError(
            f"model {model.name!r} is for {wanted}, data {data.name!r} are {there}; write "
            f'exclude = [{{model = "{model.name}", data = "{data.name}"}}], or [[pairs]] with '
            "models and data that go together"
        )


def options_from(source: Source) -> dict[str, Any]:
    """What the data tells about a network: sizes, channels, classes."""
    (first, *_), target = next(source.batches("train", 1))
    found: dict[str, Any] = {"classes": len(source.classes)} if source.classes else {}
    if isinstance(source, Text):
        return {"vocab": source.vocab, "block_size": source.block_size}
    if isinstance(source, Graph):
        return found | {"features": first.shape[1]}
    found["features"] = math.prod(first.shape[1:])
    if first.dim() == 4:
        found |= {"channels": first.shape[1], "size": first.shape[-1]}
    if target.dim() == 4:
        found["outputs"] = target.shape[1]
    return found


def fitted_options(
    given: Mapping[str, Any], allowed: Mapping[str, Any], source: Source
) -> dict[str, Any]:
    """The options of a network: those given, and those that its data tells."""
    told = {name: value for name, value in options_from(source).items() if name in allowed}
    return told | dict(given)
