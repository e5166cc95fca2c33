"""Small heads are lazy too, and run on one thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from encke.head import blocks, cross_entropy, eligible, lazy_gradient

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 classes make a head, in blocks that split them and the rows."""
    monkeypatch.setattr(eligible, "FEWEST_CLASSES", 40)
    monkeypatch.setattr(eligible, "SMALLEST", 0)
    monkeypatch.setattr(cross_entropy, "SMALLEST", 0)
    monkeypatch.setattr(cross_entropy, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(lazy_gradient, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(blocks, "FEWEST_COLUMNS", 16)
