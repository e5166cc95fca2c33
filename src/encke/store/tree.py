"""A state as JSON, with its tensors taken out and named.

Whatever a state dict holds becomes a tree of JSON values without loss: what JSON has no word
for is an object with one key that starts with `$`. No pickle: what is not listed here is
refused.
"""

from __future__ import annotations

import base64
import math
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from encke.errors import CorruptStreamError, UnsupportedError

#: Deeper trees are refused, so that no file can exhaust the stack.
MAX_DEPTH = 100
_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: object) -> torch.dtype:
    """The dtype of that name; `CorruptStreamError` if there is none."""
    found = _DTYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise CorruptStreamError(f"file names the dtype {name!r}, which this torch has not")
    return found


class Flattened:
    """A state taken apart: a JSON tree, and the tensors that it refers to by number.

    >>> flat = Flattened({"w": torch.ones(2), "step": 3, "betas": (0.9, 0.999)})
    >>> flat.tree["step"], flat.names
    (3, ['w'])
    >>> sorted(rebuilt(flat.tree, flat.tensors))
    ['betas', 'step', 'w']
    """

    def __init__(self, state: Any) -> None:
        self.names: list[str] = []
        self.tensors: list[Tensor] = []
        self._known: set[str] = set()
        self.tree = self._reduced(state, (), 0)

    def _reduced(self, value: Any, path: tuple[str, ...], depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise UnsupportedError(f"{'/'.join(path[:4])}…: nested deeper than {MAX_DEPTH}")
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, Tensor):
            return {"$tensor": self._named(value, path)}
        if isinstance(value, Mapping):
            return self._mapping(value, path, depth)
        if isinstance(value, torch.Size):
            return {"$size": list(value)}
        if type(value) in (list, tuple, set, frozenset):
            items = [
                self._reduced(item, (*path, str(number)), depth + 1)
                for number, item in enumerate(value)
            ]
            return items if type(value) is list else {f"${type(value).__name__}": items}
        odd = _odd(value)
        return odd if odd is not None else self._array(value, path)

    def _named(self, value: Tensor, path: tuple[str, ...]) -> int:
        name = "/".join(path) or "tensor"
        while name in self._known:  # keys 1 and "1" of one dictionary
            name += "'"
        self._known.add(name)
        self.names.append(name)
        self.tensors.append(value.detach())
        return len(self.tensors) - 1

    def _mapping(self, value: Mapping[Any, Any], path: tuple[str, ...], depth: int) -> Any:
        items = {
            key: self._reduced(item, (*path, str(key)), depth + 1)
            for key, item in value.items()
        }
        plain = type(value) is dict and all(
            type(key) is str and not key.startswith("$") for key in items
        )
        if plain:
            return items
        if type(value) not in (dict, OrderedDict) and not isinstance(value, defaultdict):
            _refuse(value, path)
        pairs = [[self._reduced(key, path, depth + 1), item] for key, item in items.items()]
        return {"$ordered" if isinstance(value, OrderedDict) else "$dict": pairs}

    def _array(self, value: Any, path: tuple[str, ...]) -> Any:
        import numpy as np

        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
            array = np.ascontiguousarray(value)
            raw = torch.empty(0, dtype=torch.uint8)
            if array.size:
                raw = torch.frombuffer(bytearray(array.tobytes()), dtype=torch.uint8)
            return {
                "$numpy": self._named(raw, path),
                "dtype": array.dtype.newbyteorder("<").str,
                "shape": list(value.shape),
                "scalar": isinstance(value, np.generic),
            }
        return _refuse(value, path)


def _odd(value: Any) -> Any:
    """Values that have a name or a few bytes; None where it is none of them."""
    if isinstance(value, torch.dtype):
        return {"$dtype": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"$device": str(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {"$complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, PurePath):
        return {"$path": str(value)}
    if isinstance(value, int):  # an enumeration of integers
        return int(value)
    if isinstance(value, float) and type(value).__module__ != "numpy":
        return float(value)
    return None


def _refuse(value: Any, path: tuple[str, ...]) -> Any:
    raise UnsupportedError(
        f"{'/'.join(path) or 'the state'} is a {type(value).__module__}."
        f"{type(value).__qualname__}, which a file without pickle cannot hold; allowed are "
        "tensors, arrays, numbers, strings, bytes, lists, tuples, sets and dictionaries"
    )


def rebuilt(tree: Any, tensors: Sequence[Any], depth: int = 0) -> Any:
    """The state again, with `tensors` in their places."""
    if depth > MAX_DEPTH + 1:
        raise CorruptStreamError(f"the file's state is nested deeper than {MAX_DEPTH}")
    if isinstance(tree, list):
        return [rebuilt(item, tensors, depth + 1) for item in tree]
    if not isinstance(tree, dict):
        return tree
    marks = [key for key in tree if key.startswith("$")]
    if not marks:
        return {key: rebuilt(item, tensors, depth + 1) for key, item in tree.items()}
    kind, value = marks[0], tree[marks[0]]
    try:
        return _special(kind, value, tree, tensors, depth)
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, RuntimeError) as error:
        if isinstance(error, CorruptStreamError):
            raise
        raise CorruptStreamError(f"the file's state has a broken {kind}: {error}") from None


def _special(kind: str, value: Any, tree: Any, tensors: Sequence[Any], depth: int) -> Any:
    if kind in ("$dict", "$ordered"):
        pairs = [
            (rebuilt(key, tensors, depth + 1), rebuilt(item, tensors, depth + 1))
            for key, item in value
        ]
        return OrderedDict(pairs) if kind == "$ordered" else dict(pairs)
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](rebuilt(item, tensors, depth + 1) for item in value)
    if kind == "$tensor":
        return tensors[_number(value, len(tensors))]
    if kind == "$numpy":
        return _numpy(tensors[_number(value, len(tensors))], tree)
    if kind in _SIMPLE:
        return _SIMPLE[kind](value)
    raise CorruptStreamError(f"the file's state has a {kind}; update Encke to read it")


_COLLECTIONS: dict[str, Any] = {"$tuple": tuple, "$set": set, "$frozenset": frozenset}
_SIMPLE: dict[str, Any] = {
    "$float": float,
    "$size": torch.Size,
    "$dtype": dtype_of,
    "$device": torch.device,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$complex": lambda parts: complex(*(float.fromhex(part) for part in parts)),
    "$path": PurePath,
}


def _number(value: object, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise CorruptStreamError(f"the file's state refers to tensor {value!r} of {count}")
    return value


def _numpy(raw: Any, tree: Any) -> Any:
    import numpy as np

    kind = np.dtype(str(tree["dtype"]))
    if kind.kind not in "biufc":
        raise CorruptStreamError(f"the file's state has an array of {kind}")
    if raw is None:  # this tensor was left out
        return None
    shape = tuple(int(extent) for extent in tree["shape"])
    data = np.frombuffer(bytes(raw.numpy().tobytes()), dtype=kind)
    array = data.reshape(shape)
    return array[()] if tree["scalar"] else array.copy()
