"""What ranks exchange: gradients and factors, compressed within a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encke.wire.kfac import KFAC

__all__ = ["KFAC"]


def __getattr__(name: str) -> Any:
    if name == "KFAC":
        from encke.wire.kfac import KFAC

        return KFAC
    raise AttributeError(f"module 'encke.wire' has no attribute {name!r}")
