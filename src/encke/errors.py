"""One hierarchy for everything Encke refuses or finds broken."""

from __future__ import annotations

from collections.abc import Iterable


class EnckeError(Exception):
    """Base of every error that Encke raises on purpose."""


class BoundError(EnckeError, ValueError):
    """A bound that cannot be meant, or that the chosen codec cannot keep."""


class UnsupportedError(EnckeError, TypeError):
    """A tensor, dtype, device or option that the chosen codec does not take."""


class CorruptStreamError(EnckeError, ValueError):
    """Bytes that are not a stream, or no longer the stream that was written."""


class OutputError(EnckeError, OSError):
    """A file that cannot be written, or that must not be replaced."""


class BackendError(EnckeError, RuntimeError):
    """A backend that was asked for by name is not there."""


class StaleLogitsError(EnckeError, RuntimeError):
    """Logits that were not computed are used after what they depend on was changed."""


def did_you_mean(given: object, allowed: Iterable[str]) -> str:
    """The end of a message about an unknown name: the likely spelling, if there is one.

    >>> did_you_mean("tolerence", ["tolerance", "budget"])
    '; did you mean tolerance?'
    >>> did_you_mean("x", ["tolerance", "budget"])
    ''
    """
    import difflib

    names = {name.lower(): name for name in allowed}
    found = difflib.get_close_matches(str(given).lower(), names, n=1)
    return f"; did you mean {names[found[0]]}?" if found else ""
