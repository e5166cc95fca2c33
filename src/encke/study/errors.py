"""What can be wrong with a study."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from encke.errors import EnckeError


class StudyError(EnckeError, ValueError):
    """A study, or its results, that cannot be worked with as they are written."""


def unknown(what: str, given: str, allowed: Iterable[str]) -> StudyError:
    """The error for a name that is not one of `allowed`, with the one that may be meant.

    >>> print(unknown("model", "resnet81", ["mlp", "resnet18"]))
    model is 'resnet81', did you mean 'resnet18'? Allowed are mlp, resnet18
    """
    names = list(allowed)
    close = get_close_matches(given, names, n=1)
    meant = f", did you mean {close[0]!r}?" if close else "."
    return StudyError(f"{what} is {given!r}{meant} Allowed are {', '.join(names) or 'none'}")


def check_keys(what: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise for the first key of `given` that is not allowed."""
    names = list(allowed)
    for key in given:
        if key not in names:
            raise unknown(f"a key of {what}", key, names)
