"""The codecs by name and by the id they have in a stream."""

from __future__ import annotations

import functools
import importlib

from encke.codec.contract import Codec
from encke.errors import CorruptStreamError, UnsupportedError, did_you_mean

#: name → (id in the stream, module, class). A new codec is one line here and one file.
_CODECS: dict[str, tuple[int, str, str]] = {
    "fixed": (1, "encke.codec.fixed", "Fixed"),
    "entropy": (2, "encke.codec.entropy", "Entropy"),
    "predict": (3, "encke.codec.predict", "Predict"),
    "group": (4, "encke.codec.group", "Group"),
    "mask": (5, "encke.codec.mask", "Mask"),
    "index": (6, "encke.codec.index", "Index"),
    "lossless": (7, "encke.codec.lossless", "LosslessPlanes"),
    "zfp": (8, "encke.codec.zfp", "Zfp"),
}
_NAMES = {entry[0]: name for name, entry in _CODECS.items()}


def names() -> tuple[str, ...]:
    """Every codec's name, in the order of their ids.

    >>> names()[:2]
    ('fixed', 'entropy')
    """
    return tuple(_CODECS)


@functools.cache
def by_name(name: str) -> Codec:
    """The codec called `name`."""
    if name not in _CODECS:
        raise UnsupportedError(
            f"codec is {name!r}, allowed are auto, {', '.join(_CODECS)}"
            f"{did_you_mean(name, ['auto', *_CODECS])}"
        )
    _, module, cls = _CODECS[name]
    codec: Codec = getattr(importlib.import_module(module), cls)()
    return codec


def by_id(number: int) -> Codec:
    """The codec that a stream names."""
    if number not in _NAMES:
        raise CorruptStreamError(f"stream names codec id {number}, known are {sorted(_NAMES)}")
    return by_name(_NAMES[number])
