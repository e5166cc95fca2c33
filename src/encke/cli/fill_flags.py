"""The flag that names fill values, and the sentence that proposes some."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def add_fill(command: argparse.ArgumentParser) -> None:
    """Add `--fill`, which may be given several times."""
    command.add_argument(
        "--fill",
        type=float,
        action="append",
        default=[],
        metavar="NUMBER",
        help='stands for "no value" and comes back exactly; may be given several times',
    )


def fill_of(arguments: argparse.Namespace, own: tuple[float, ...]) -> tuple[float, ...] | None:
    """What the flags and the file name as fill values; None if they name none."""
    return tuple(dict.fromkeys((*own, *arguments.fill))) or None


def propose(name: str, x: Tensor, named: tuple[float, ...] | None) -> tuple[float, ...]:
    """Say on standard error which further numbers look like fill values."""
    import torch

    from encke.codec.proposed import propose_fill

    known = torch.tensor(named or (), dtype=torch.float64).to(x.dtype)
    found = propose_fill(x)
    new = tuple(n for n in found if not bool((known == torch.tensor(n, dtype=x.dtype)).any()))
    for number in new:
        print(
            f"encke: {name}: {number:g} repeats far outside all other values; if it stands for "
            f'"no value", give --fill {number:g}',
            file=sys.stderr,
        )
    return new
