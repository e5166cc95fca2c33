"""What backward keeps: activations, recognised by op and role, compressed within bounds."""

# These fill the tables of `needs.table` and `recompute.finder`.
from encke.tape.needs import exact_ops, lossy_ops  # noqa: F401
from encke.tape.needs.table import Need, Rule, add_rule
from encke.tape.policy import GradientEffect, Policy, SavedTensor, Site, StorageDecision
from encke.tape.recompute import elementwise, norms  # noqa: F401
from encke.tape.tape import Tape

__all__ = [
    "GradientEffect",
    "Need",
    "Policy",
    "Rule",
    "SavedTensor",
    "Site",
    "StorageDecision",
    "Tape",
    "add_rule",
]

_RENAMED = {
    "Effect": GradientEffect,
    "Sight": SavedTensor,
    "Treatment": StorageDecision,
}


def __getattr__(name: str) -> object:
    """The names that these classes had before; they work for one release."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import warnings

    new = _RENAMED[name]
    warnings.warn(
        f"encke.tape.{name} is called encke.tape.{new.__name__} now",
        DeprecationWarning,
        stacklevel=2,
    )
    return new
