"""What is said when the library of an integration is not installed."""

from __future__ import annotations

from encke.errors import UnsupportedError


def absent(integration: str, *, package: str, extra: str) -> UnsupportedError:
    """The error for an integration whose library is missing, with the way to get it.

    >>> absent("encke.integrations.lightning", package="lightning", extra="lightning")
    ... # doctest: +ELLIPSIS
    UnsupportedError("encke.integrations.lightning needs the package lightning, ...
    """
    return UnsupportedError(
        f"{integration} needs the package {package}, which is not installed; get it with "
        f"`pip install 'encke[{extra}]'`"
    )
