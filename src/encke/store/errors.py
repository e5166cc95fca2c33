"""What the store refuses for other reasons than damaged bytes."""

from __future__ import annotations

from encke.errors import EnckeError


class StoreError(EnckeError, ValueError):
    """A file that does not fit the model or optimizer, or a request that cannot be met."""
