"""What goes to disk: weights, optimizer state and whole checkpoints, within stated errors.

Names are imported on first use: `import encke.store` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import encke.store.dcp as dcp
    from encke.store.errors import StoreError
    from encke.store.loading import load
    from encke.store.moments import Moments
    from encke.store.planning import Plan, plan
    from encke.store.pruning import prune
    from encke.store.reader import StateReader
    from encke.store.saving import save
    from encke.store.summary import Summary

_HOMES = {
    "Moments": "moments",
    "Plan": "planning",
    "StateReader": "reader",
    "StoreError": "errors",
    "Summary": "summary",
    "load": "loading",
    "plan": "planning",
    "prune": "pruning",
    "save": "saving",
}

__all__ = [
    "Moments",
    "Plan",
    "StateReader",
    "StoreError",
    "Summary",
    "dcp",
    "load",
    "plan",
    "prune",
    "save",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "dcp":
        return importlib.import_module("encke.store.dcp")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'encke.store' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"encke.store.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
