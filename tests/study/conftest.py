"""Small networks run on one thread: more of them only wait for one another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# For small_cells, and for what starts ranks.
sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tape")]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
