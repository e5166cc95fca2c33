"""Makes the cases in this folder and the ranks of the tape's tests importable."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

for _folder in (Path(__file__).parent, Path(__file__).parents[2] / "tape"):
    sys.path.append(str(_folder))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
