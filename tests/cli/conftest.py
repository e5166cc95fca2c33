"""Files to run the commands on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def field() -> np.ndarray:
    """A smooth field with noise, 24×40, float32."""
    rows, columns = np.mgrid[0:24, 0:40]
    noise = np.random.default_rng(3).normal(0, 0.05, (24, 40))
    return (np.sin(rows / 5) * np.cos(columns / 7) + noise).astype(np.float32)


@pytest.fixture
def npy(tmp_path: Path, field: np.ndarray) -> Path:
    path = tmp_path / "field.npy"
    np.save(path, field)
    return path


@pytest.fixture
def npz(tmp_path: Path, field: np.ndarray) -> Path:
    path = tmp_path / "fields.npz"
    np.savez(path, first=field, second=field[:5] * 2, wide=field.astype(np.float64))
    return path
