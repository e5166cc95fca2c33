"""Files that were written once decode to the same values, by every backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from encke import store

FOLDER = Path(__file__).parent / "golden"


def flat(state: Any) -> dict[str, torch.Tensor]:
    spec = importlib.util.spec_from_file_location("store_golden", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    found: dict[str, torch.Tensor] = made.flat(state)
    return found


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("name", ["full-1", "delta-1", "pruned-1"])
def test_a_golden_file_decodes_to_its_values(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCKE_BACKEND", backend)
    found = flat(store.load(FOLDER / f"{name}.encke"))
    expected = load_file(FOLDER / f"{name}.safetensors")
    assert found.keys() == expected.keys()
    for key, x in expected.items():
        assert found[key].dtype == x.dtype
        if "exp_avg" in key:  # exponentials differ in their last bits between processors
            torch.testing.assert_close(found[key], x, rtol=1e-5, atol=0.0)
        else:
            assert torch.equal(found[key], x), key


def test_other_values_of_a_golden_file_come_back() -> None:
    extra = store.load(FOLDER / "full-1.encke")["extra"]
    assert extra == {
        "epoch": 3, "nested": [1, (2.5, None)], "set": {1}, "infinite": float("inf"),
    }  # fmt: skip
