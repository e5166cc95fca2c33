"""Weights that are mostly zero keep their zeros, and take few bits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from encke import store
from encke.errors import BoundError
from encke.store import StateReader, StoreError
from encke.store.curvature import mean_loss
from encke.store.objective import default_objective


def test_pruned_weights_keep_their_zeros_and_their_budget(tmp_path: Path, trained: Any) -> None:
    pruning = store.prune(trained.model, {"4.weight": 0.08, "0.weight": 0.4})
    assert pruning.density < 0.1
    data = trained.batches[:3]
    for batch in data:
        trained.step(batch)
        pruning.apply()
    before = mean_loss(trained.model, data, default_objective)
    done = store.save(tmp_path / "a.encke", trained.model, loss=1e-2, data=data)
    other = copy.deepcopy(trained.model)
    store.load(tmp_path / "a.encke", other)
    assert mean_loss(other, data, default_objective) - before <= 1e-2 * before * 1.0001
    for name, mask in pruning.masks.items():
        x, y = trained.model.state_dict()[name], other.state_dict()[name]
        assert bool((y[~mask] == 0).all())
        with StateReader(tmp_path / "a.encke") as stored:
            entry = stored.entry(f"model/{name}")
        assert entry.how == "pruned"
        assert float((x.double() - y.double()).abs().max()) <= entry.facts["error"]
    assert done.ratio > 15


@pytest.mark.parametrize("shape", [(1, 50), (50, 1), (300, 200), (9, 4, 3, 3)])
def test_positions_of_any_pattern_come_back(tmp_path: Path, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = nn.Module()
    weight = torch.randn(shape)
    density = torch.rand(shape[0], *[1] * (len(shape) - 1)) * 0.3
    weight[torch.rand(shape) > density] = 0.0
    weight[0] = 0.0
    model.weight = nn.Parameter(weight)

    def objective(module: Any, batch: Any) -> torch.Tensor:
        return (module.weight - batch).square().sum() + 1.0

    path = tmp_path / "a.encke"
    store.save(path, model, loss=1e-3, data=[weight], objective=objective)
    y = store.load(path)["model"]["weight"]
    assert torch.equal(y == 0, weight == 0) or float((y - weight).abs().max()) < 0.1
    assert bool((y[weight == 0] == 0).all())


def test_wrong_densities_are_refused() -> None:
    with pytest.raises(BoundError, match="density"):
        store.prune(nn.Linear(3, 3), {"weight": 0.0})
    with pytest.raises(StoreError, match="fits"):
        store.prune(nn.Linear(3, 3), {"other": 0.5})
