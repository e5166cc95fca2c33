"""The flags that give a bound: one for each kind, exactly one of them at a time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from encke.bound import Bound

_FLAGS = {
    "abs": ("E", "largest |decoded - x|"),
    "range": ("R", "largest error as a share of max - min"),
    "rms": ("R", "largest error as a share of the root mean square"),
    "pointwise": ("R", "largest error as a share of each value's magnitude"),
    "rate": ("BITS", "bits for each value's code, whatever the error"),
}


def add_bound(command: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Add the bound flags; without a `default` in words, one of them must be given."""
    described = "what a decoded value may differ by"
    group = command.add_argument_group(
        "bound", described + (f" (default {default})" if default else "")
    )
    flags = group.add_mutually_exclusive_group(required=default is None)
    for kind, (letter, meaning) in _FLAGS.items():
        flags.add_argument(f"--{kind}", type=float, metavar=letter, help=meaning)
    flags.add_argument("--lossless", action="store_true", help="every bit comes back")


def given_bound(arguments: argparse.Namespace, *, default: Bound | None = None) -> Bound:
    """The bound that the flags name."""
    from encke.bound import Lossless
    from encke.bound.kinds import KINDS, from_code
    from encke.errors import BoundError

    for code, cls in KINDS.items():
        number = getattr(arguments, cls.kind, None)
        if cls is not Lossless and number is not None:
            return from_code(code, number)
    if arguments.lossless:
        return Lossless()
    if default is None:
        raise BoundError("no bound is given; give --abs, --range, --rms, … or --lossless")
    return default
