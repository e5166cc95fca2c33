"""Rows as JSON inside a page: safe between script tags, and no larger than a page should be."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from encke.study.report.comparison import Comparison
from encke.study.report.fields import Row, entries, field, number
from encke.study.report.numbers import counted

#: What the embedded rows may take, in characters.
BUDGET = 4_000_000
#: What only the pictures of one training need, the largest first.
DETAILS = ("layers", "gradient_error", "timeline", "error_histogram")
_TIMELINE_POINTS, _TRACEBACK = 120, 4_000
# Characters that could end a script element or start a comment in it; JSON has them in
# strings only, where an escape says the same. U+2028 and U+2029 end a line of a script.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def dumped(value: Any) -> str:
    """JSON that may stand inside a script element; numbers that JSON has not become null.

    >>> dumped({"name": "</script>", "loss": float("nan")})
    '{"name":"\\\\u003c/script\\\\u003e","loss":null}'
    """
    written = json.dumps(
        _finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str
    )
    # A lone surrogate is a legal str but cannot be written as UTF-8.
    return written.translate(_ESCAPES).encode("utf-8", "replace").decode("utf-8")


def fitted(
    comparison: Comparison, *, first: Sequence[int] = (), budget: int = BUDGET
) -> tuple[list[Row], str]:
    """The rows to embed, and what was left out of them, in words ("" if nothing).

    Rows that fit are embedded as they are. Otherwise the details of one seed of every policy
    stay, rounded and with long lists thinned out, as many as fit: those of the rows in `first`
    before the others. Figures that are compared are never left out.
    """
    rows = comparison.rows
    if sum(map(_length, rows)) <= budget:
        return list(rows), ""
    bare = [_without_details(row) for row in rows]
    room = budget - sum(map(_length, bare))
    chosen = _one_seed_each(comparison)
    kept = 0
    for i in sorted(chosen, key=lambda i: (i not in first, i)):
        thinned = {key: _thinned(rows[i], key) for key in DETAILS}
        cost = _length(thinned) - _length(dict.fromkeys(DETAILS))
        if cost <= room:
            bare[i] |= thinned
            room -= cost
            kept += 1
    detailed = sum(any(field(row, key) for key in DETAILS) for row in rows)
    return bare, (
        f"To keep this page small, layers, gradient errors, timelines and histograms of "
        f"{kept} of {counted(detailed, 'cell')} that have them are embedded (one seed of a "
        f"policy at the most), rounded to five digits; everything is in the study's results."
    )


def _one_seed_each(comparison: Comparison) -> list[int]:
    """The first row with details of every group."""
    found = []
    for group in comparison.groups:
        for i in group.done:
            if any(field(comparison.rows[i], key) for key in DETAILS):
                found.append(i)
                break
    return found


def _without_details(row: Row) -> Row:
    bare = {
        key: None if key in DETAILS else _rounded(value)
        for key, value in row.items()
        if isinstance(key, str)
    }
    error = bare.get("error")
    if isinstance(error, dict) and isinstance(error.get("traceback"), str):
        bare["error"] = error | {"traceback": error["traceback"][-_TRACEBACK:]}
    return bare


def _thinned(row: Row, key: str) -> Any:
    value = field(row, key)
    if key == "layers" and isinstance(value, list):
        value = list(_without_small(value))
    elif key == "timeline" and isinstance(value, dict):
        value = value | {side: _every(entries(value, side)) for side in ("plain", "kept")}
    return _rounded(value)


def _without_small(layers: list[Any]) -> Iterator[Any]:
    """Tensors of less than a thousandth of all bytes, summed up in one entry for each `how`."""
    whole = sum(number(layer, "plain_bytes") or 0 for layer in layers)
    small: dict[str, list[Any]] = {}
    for layer in layers:
        if (
            max(number(layer, key) or 0 for key in ("plain_bytes", "stored_bytes")) * 1000
            < whole
        ):
            small.setdefault(str(field(layer, "how")), []).append(layer)
        else:
            yield layer
    for how, members in small.items():
        yield {
            "module": f"({counted(len(members), 'small tensor')})",
            "how": how,
            **{
                key: sum(number(member, key) or 0 for member in members)
                for key in ("elements", "plain_bytes", "stored_bytes")
            },
        }


def _every(points: list[Any]) -> list[Any]:
    """At most so many of the points, the highest of each stretch, first and last included."""
    if len(points) <= _TIMELINE_POINTS:
        return points
    stretch = math.ceil(len(points) / (_TIMELINE_POINTS - 2))
    inner = points[1:-1]
    highest = [max(inner[i : i + stretch], key=_height) for i in range(0, len(inner), stretch)]
    return [points[0], *highest, points[-1]]


def _height(point: Any) -> float:
    if isinstance(point, list) and len(point) > 1 and isinstance(point[1], (int, float)):
        return float(point[1])
    return -math.inf


def _length(value: Any) -> int:
    return len(dumped(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def _rounded(value: Any) -> Any:
    """Floats to five significant digits."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return value
