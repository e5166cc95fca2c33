"""Arrays from .npz files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from encke.study.data.errors import BrokenDataError

Array = npt.NDArray[Any]


def read_npz(path: Path, required: tuple[str, ...] = ()) -> dict[str, Array]:
    """Every array of the file. Objects are refused: they would run code."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile, zlib.error) as e:
        raise BrokenDataError(f"{path} cannot be read as .npz: {e}") from e
    absent = [name for name in required if name not in arrays]
    if absent:
        raise BrokenDataError(
            f"{path} has no {', '.join(absent)}, only the arrays {', '.join(sorted(arrays))}"
        )
    return arrays
