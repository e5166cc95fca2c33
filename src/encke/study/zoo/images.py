"""Families of networks that sort images into classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Generator, nn

from encke.study.zoo.batch import Batch
from encke.study.zoo.model import Family
from encke.study.zoo.samples import class_labels, cross_entropy, smooth_fields


def image_family(
    name: str, about: str, network: Callable[..., nn.Module], *, size: int | None = None
) -> Family:
    """A classifier of images. `network` has the options `classes` and `channels`.

    `size` is that of the samples unless told otherwise; None if `network` has an option
    `size` of its own.
    """
    shape = {} if size is None else {"size": size}
    return Family(
        name=name,
        about=about,
        network=network,
        sample=_sample,
        loss=cross_entropy,
        shape=shape,
    )


def _sample(batch: int, generator: Generator, options: Mapping[str, Any]) -> Batch:
    size = options["size"]
    images = smooth_fields((batch, options["channels"], size, size), generator)
    return Batch((images,), class_labels((batch,), options["classes"], generator))
