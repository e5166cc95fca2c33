"""Reaching a given number of bytes."""

from __future__ import annotations

import re

from encke.errors import UnsupportedError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def parse_bytes(text: int | str) -> int:
    """A number of bytes, from a number or words.

    >>> parse_bytes("6GiB")
    6442450944
    >>> parse_bytes("500 MB")
    500000000
    """
    if isinstance(text, int) and text > 0:
        return text
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    if not found or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise UnsupportedError(
            f"budget is {text!r}; allowed is a number of bytes above zero, or words like "
            "'6GiB', '500MB'"
        )
    return int(float(found[1]) * _UNITS[found[2].upper()])
