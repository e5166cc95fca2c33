"""What can be wrong with data on disk."""

from __future__ import annotations

from encke.errors import EnckeError


class MissingDataError(EnckeError, FileNotFoundError):
    """A data set is not there; says where it was looked for and how to get it."""


class BrokenDataError(EnckeError, ValueError):
    """A file of a data set is not what its format says."""
