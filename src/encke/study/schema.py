"""The schema of a row of results, to check rows against: docs/study-results.md in code.

A shape is a type, a set of allowed values, a tuple of shapes of which one must fit, a list
with the shape of its elements, or a dict with the shape of each key, all of which must be
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from encke.study.kinds import KINDS
from encke.study.results import SCHEMA, Row

_Shape = Any
_NUMBER = (int, float)
_MAYBE_NUMBER = (int, float, None)
_STATUS = frozenset({"done", "failed"})

SHAPE: dict[str, _Shape] = {
    "schema": frozenset({SCHEMA}),
    "cell": str,
    "model": str,
    "model_options": dict,
    "data": str,
    "data_options": dict,
    "policy": str,
    "policy_kind": frozenset(KINDS),
    "policy_options": dict,
    "seed": int,
    "status": _STATUS,
    "error": (None, {"type": str, "message": str, "traceback": str}),
    "environment": {
        "encke": str,
        "torch": str,
        "python": str,
        "backend": str,
        "instruction_set": (str, None),
        "threads": int,
        "processor": str,
    },
    "training": {
        "batch": int,
        "steps": (int, None),
        "epochs": (int, None),
        "optimizer": str,
        "rate": _NUMBER,
        "parameters": (int, None),
    },
    "metric": {
        "name": str,
        "unit": str,
        "better": frozenset({"higher", "lower"}),
        "final": _MAYBE_NUMBER,
        "best": _MAYBE_NUMBER,
    },
    "loss": {"train": _MAYBE_NUMBER, "test": _MAYBE_NUMBER},
    "curve": [
        {
            "step": int,
            "train_loss": _MAYBE_NUMBER,
            "test_loss": _MAYBE_NUMBER,
            "metric": _MAYBE_NUMBER,
            "ratio": _MAYBE_NUMBER,
        }
    ],
    "memory": {
        "plain_bytes": int,
        "stored_bytes": int,
        "ratio": _MAYBE_NUMBER,
        "peak_bytes": int,
    },
    "time": {
        "step_seconds": _NUMBER,
        "plain_step_seconds": _NUMBER,
        "relative": _NUMBER,
        "pairs": int,
    },
    "timeline": {
        "plain": [[_NUMBER]],
        "kept": [[_NUMBER]],
        "forward_end": {"plain": _NUMBER, "kept": _NUMBER},
    },
    "layers": (
        None,
        [
            {
                "module": str,
                "op": str,
                "role": str,
                "how": str,
                "codec": str,
                "bound": _MAYBE_NUMBER,
                "elements": int,
                "plain_bytes": int,
                "stored_bytes": int,
                "why": str,
            }
        ],
    ),
    "gradient_error": (
        None,
        [
            {
                "module": str,
                "op": str,
                "parameter": (str, None),
                "predicted": _MAYBE_NUMBER,
                "measured": _MAYBE_NUMBER,
                "square": _MAYBE_NUMBER,
            }
        ],
    ),
    "error_histogram": (
        None,
        {"edges": [_NUMBER], "counts": [int], "worst": _NUMBER, "values": int},
    ),
    "codecs": (None, dict),
    "seconds": _MAYBE_NUMBER,
    "finished": (str, None),
}

#: What a cell that has failed need not have.
_OF_DONE = ("environment", "metric", "loss", "curve", "memory", "time", "timeline")


def problems(row: Row) -> list[str]:
    """What is wrong with a row; empty if it keeps to the schema.

    >>> problems({"schema": 1})[0]
    'cell is missing'
    """
    shape = dict(SHAPE)
    if row.get("status") == "failed":
        shape |= {key: (None, shape[key]) for key in _OF_DONE}
    found = list(_compare(row, shape, ""))
    done = row.get("status") == "done"
    if done and row.get("error") is not None:
        found.append("error is there, though the status is done")
    if row.get("status") == "failed" and row.get("error") is None:
        found.append("error is missing, though the status is failed")
    return found


def _compare(value: Any, shape: _Shape, at: str) -> Iterator[str]:
    here = at or "the row"
    if isinstance(shape, tuple):
        tries = [list(_compare(value, one, at)) for one in shape]
        if all(tries):
            yield from min(tries, key=len)
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            yield f"{here} is {value!r}, not an object"
            return
        for key in value.keys() - shape.keys():
            yield f"{at}{'.' * bool(at)}{key} is not in the schema"
        for key, inner in shape.items():
            path = f"{at}{'.' * bool(at)}{key}"
            if key in value:
                yield from _compare(value[key], inner, path)
            else:
                yield f"{path} is missing"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{here} is {value!r}, not a list"
            return
        for number, one in enumerate(value):
            yield from _compare(one, shape[0], f"{at}[{number}]")
    elif isinstance(shape, frozenset):
        if value not in shape:
            yield f"{here} is {value!r}, allowed are {', '.join(map(repr, sorted(shape)))}"
    elif shape is None:
        if value is not None:
            yield f"{here} is {value!r}, not null"
    elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        yield f"{here} is {value!r}, not {shape.__name__}"
