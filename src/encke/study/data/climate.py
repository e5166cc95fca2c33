"""Fields of a climate model on a grid, year after year."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from encke.errors import UnsupportedError
from encke.study.data.arrays import read_npz
from encke.study.data.errors import BrokenDataError
from encke.study.data.examples import Examples, Split, Standardise
from encke.study.data.locate import first_file

_ADVICE = (
    "Make climate.npz of float32 arrays <variable>_<member> (years, rows, columns), e.g. "
    "TREFHT_57 from the CESM files in github.com/NCAR/geocat-datafiles."
)


def arrays(*, root: str | Path | None = None) -> dict[str, Tensor]:
    """Every array of climate.npz as it is stored, for studies of compression alone."""
    path = first_file("climate", "climate.npz", root, subfolders=("climate",), advice=_ADVICE)
    return {name: torch.from_numpy(array) for name, array in read_npz(path).items()}


def load_climate(
    *, root: str | Path | None = None, variable: str = "TREFHT", lead: int = 1
) -> Examples:
    """A year's field as input, the field `lead` years later as target, (n, 1, rows, columns).

    Of several ensemble members the last is the test split. A single one is divided in time:
    its last fifth is the test split. Both are standardised with the train split's moments.
    """
    if lead < 1:
        raise UnsupportedError(f"lead is {lead}, it must be at least 1 year")
    stored = arrays(root=root)
    members = [stored[name] for name in sorted(stored) if name.rpartition("_")[0] == variable]
    members = [member for member in members if member.dim() == 3]
    if not members:
        there = sorted({n.rpartition("_")[0] for n, x in stored.items() if x.dim() == 3})
        raise UnsupportedError(f"variable is {variable!r}, there are {', '.join(there)}")
    if len(members) == 1:
        years = len(members[0]) - len(members[0]) // 5
        members = [members[0][:years], members[0][years:]]
    if any(len(member) <= lead for member in members):
        raise BrokenDataError(
            f"{variable} has only {min(map(len, members))} years in a split; with lead={lead} "
            f"{lead + 1} are needed"
        )
    pairs = [Split(member[:-lead, None], member[lead:, None]) for member in members]
    train = Split(*(torch.cat(column) for column in zip(*pairs[:-1], strict=True)))
    scale = Standardise.of(train.inputs)
    return Examples(
        name="climate", train=train, test=pairs[-1], prepare=scale, prepare_target=scale
    )
