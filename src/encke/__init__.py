"""Encke: train larger networks in the memory and bandwidth you have.

Everything a training step keeps or moves passes through error-bounded lossy
compression: what goes out comes back, within a known bound.

>>> import torch, encke
>>> x = torch.randn(1000)
>>> packed = encke.compress(x, encke.Absolute(1e-2))
>>> bool((encke.decompress(packed) - x).abs().max() <= 1e-2)
True
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encke import memory, store, wire
    from encke.bound import (
        Absolute,
        Bound,
        FixedRate,
        Lossless,
        PointwiseRelative,
        RangeRelative,
        RmsRelative,
    )
    from encke.codec import Packed, compress, decompress
    from encke.control import (
        Adaptive,
        BudgetError,
        Comet,
        Fixed,
        GroupBits,
        activations,
        advise,
        attach,
    )
    from encke.errors import (
        BackendError,
        BoundError,
        CorruptStreamError,
        EnckeError,
        UnsupportedError,
    )
    from encke.head import linear_cross_entropy
    from encke.tape import Tape

try:
    __version__ = version("encke")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+source"

#: Folders that are public as such.
_FOLDERS = ("memory", "store", "wire")

# Public names and where they live. They are imported on first use, so that
# `encke --help` does not wait for torch.
_HOMES = {
    **dict.fromkeys(
        (
            "Absolute",
            "Bound",
            "FixedRate",
            "Lossless",
            "PointwiseRelative",
            "RangeRelative",
            "RmsRelative",
        ),
        "encke.bound",
    ),
    **dict.fromkeys(("Packed", "compress", "decompress"), "encke.codec"),
    **dict.fromkeys(
        (
            "Adaptive",
            "BudgetError",
            "Comet",
            "Fixed",
            "GroupBits",
            "activations",
            "advise",
            "attach",
        ),
        "encke.control",
    ),
    "linear_cross_entropy": "encke.head",
    "Tape": "encke.tape",
    **dict.fromkeys(
        ("BackendError", "BoundError", "CorruptStreamError", "EnckeError", "UnsupportedError"),
        "encke.errors",
    ),
}

__all__ = [
    "Absolute",
    "Adaptive",
    "BackendError",
    "Bound",
    "BoundError",
    "BudgetError",
    "Comet",
    "CorruptStreamError",
    "EnckeError",
    "Fixed",
    "FixedRate",
    "GroupBits",
    "Lossless",
    "Packed",
    "PointwiseRelative",
    "RangeRelative",
    "RmsRelative",
    "Tape",
    "UnsupportedError",
    "__version__",
    "activations",
    "advise",
    "attach",
    "compress",
    "decompress",
    "linear_cross_entropy",
    "memory",
    "store",
    "wire",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _FOLDERS:
        return importlib.import_module(f"encke.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'encke' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
