"""Reading a row of results without trusting it: what is missing, null or not finite is None."""

from __future__ import annotations

import json
import math
from typing import Any

Row = dict[str, Any]


def field(row: Any, *path: str) -> Any:
    """What lies at the end of a path of keys; None where the path breaks off.

    >>> row = {"memory": {"ratio": 3.0}, "time": None}
    >>> field(row, "memory", "ratio"), field(row, "time", "relative")
    (3.0, None)
    """
    for key in path:
        if not isinstance(row, dict):
            return None
        row = row.get(key)
    return row


def number(row: Any, *path: str) -> float | None:
    """The finite number there, or None.

    >>> number({"a": 2}, "a"), number({"a": "2"}, "a"), number({"a": float("nan")}, "a")
    (2.0, None, None)
    """
    value = field(row, *path)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def text(row: Any, *path: str, default: str = "") -> str:
    """What is there as text.

    >>> text({"model": "resnet18"}, "model"), text({}, "model", default="?")
    ('resnet18', '?')
    """
    value = field(row, *path)
    return default if value is None else str(value)


def entries(row: Any, *path: str) -> list[Any]:
    """The list there; an empty one where there is none."""
    value = field(row, *path)
    return value if isinstance(value, list) else []


def options(row: Any, key: str) -> str:
    """Options as words, in a fixed order.

    >>> options({"model_options": {"width": 64, "depth": 2}}, "model_options")
    'depth=2, width=64'
    """
    value = field(row, key)
    if not isinstance(value, dict):
        return ""
    return ", ".join(f"{name}={_said(value[name])}" for name in sorted(value, key=str))


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def is_done(row: Row) -> bool:
    return bool(field(row, "status") == "done")
