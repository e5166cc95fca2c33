"""Knowing that a tensor was changed after it was saved, without keeping the tensor."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from encke.errors import EnckeError


class ModifiedError(EnckeError, RuntimeError):
    """A tensor that backward needs was changed in place after it was saved."""


@cache
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(0, dtype=dtype, device=device)


class VersionCheck:
    """Shares a tensor's version counter, but none of its memory.

    A detached alias shares the counter of the original; giving the alias empty data leaves
    it the counter. So a later in-place change still shows, though the values are gone.

    >>> x = torch.zeros(3)
    >>> check = VersionCheck(x)
    >>> check.changed()
    False
    >>> _ = x.add_(1)
    >>> check.changed()
    True
    """

    __slots__ = ("_alias", "_version")

    def __init__(self, t: Tensor) -> None:
        alias = t.detach()
        alias.data = _nothing(t.dtype, t.device)
        self._alias = alias
        self._version = alias._version

    def changed(self) -> bool:
        return self._alias._version != self._version

    def check(self, what: object, shape: tuple[int, ...]) -> None:
        """Raise as autograd does when what was saved is no longer what it was."""
        check_version(self._alias, self._version, what, shape)


def check_version(
    t: Tensor, expected: int, what: object, shape: tuple[int, ...] | None = None
) -> None:
    """Raise unless `t`, which `what` needs, is at the version expected."""
    if t._version != expected:
        raise ModifiedError(
            "one of the variables needed for gradient computation has been modified by an "
            f"inplace operation: {what}, shape {list(t.shape if shape is None else shape)}, is "
            f"at version {t._version}; expected version {expected} instead. Use the "
            "out-of-place form of the operation that comes after it, or clone() before."
        )
