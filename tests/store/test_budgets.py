"""A stated rise of the loss is kept on the calibration data, and spent."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from encke import store
from encke.store import StateReader
from encke.store.curvature import calibrate, mean_loss
from encke.store.errors import StoreError
from encke.store.feedback import correction, rounded
from encke.store.objective import default_objective


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("feedback", [True, False])
def test_the_loss_rises_by_no_more_than_was_allowed(
    tmp_path: Path, trained: Any, budget: float, feedback: bool
) -> None:
    data = trained.batches[:6]
    before = mean_loss(trained.model, data, default_objective)
    weights = copy.deepcopy(trained.model.state_dict())
    done = store.save(
        tmp_path / "a.encke", trained.model, loss=budget, data=data, feedback=feedback
    )
    after = trained.model.state_dict()
    assert all(torch.equal(weights[n], after[n]) for n in weights)  # saving changes nothing
    store.load(tmp_path / "a.encke", trained.model)
    rise = mean_loss(trained.model, data, default_objective) - before
    told = done.report["budget"]
    assert rise <= budget * before * 1.0001
    assert rise == pytest.approx(told["measured"], abs=1e-6 * before)
    assert told["allowed"] == pytest.approx(budget * before, rel=1e-3)
    assert done.ratio > {1e-4: 4, 1e-3: 5, 1e-2: 7}[budget]


@pytest.mark.slow
def test_feedback_takes_fewer_bits_for_the_same_loss(trained: Any) -> None:
    data = trained.batches[:6]
    with_it = store.plan(trained.model, loss=1e-3, data=data)
    without = store.plan(trained.model, loss=1e-3, data=data, feedback=False)
    assert with_it.bits < without.bits - 0.3


@pytest.mark.slow
def test_every_weight_stays_within_what_the_file_says(tmp_path: Path, trained: Any) -> None:
    store.save(tmp_path / "a.encke", trained.model, loss=1e-3, data=trained.batches[:3])
    with StateReader(tmp_path / "a.encke") as stored:
        for name, x in trained.model.state_dict().items():
            entry = stored.entry(f"model/{name}")
            y = stored.tensor(f"model/{name}")
            if entry.facts.get("error"):
                assert float((y.double() - x.double()).abs().max()) <= entry.facts["error"]
            if "factor" in entry.facts:
                assert float((y / x).max()) <= entry.facts["factor"] * (1 + 1e-6)


@pytest.mark.slow
def test_curvature_predicts_the_rise_of_small_errors(trained: Any) -> None:
    data = trained.batches[:6]
    found = calibrate(trained.model, data, default_objective)
    before = mean_loss(trained.model, data, default_objective)
    name, weight = "4.weight", trained.model[4].weight
    kept = weight.detach().clone()
    rises = []
    for seed in range(8):
        torch.manual_seed(seed)
        e = 0.05 * kept.square().mean().sqrt()
        error = (torch.rand_like(kept) * 2 - 1) * e
        both = 0.0
        for sign in (1, -1):  # the slope cancels
            weight.data.copy_(kept + sign * error)
            both += mean_loss(trained.model, data, default_objective) - before
        weight.data.copy_(kept)
        rises.append(both / 2)
    predicted = 0.5 * found.mean[name] * kept.numel() * float(e) ** 2 / 3
    assert 0.6 < predicted / (sum(rises) / len(rises)) < 1.6


def test_calibrating_leaves_the_model_and_the_random_numbers_as_they_were(
    trained: Any,
) -> None:
    trained.model.train()
    trained.model[0].weight.requires_grad_(False)
    trained.model[4].eval()
    before = copy.deepcopy(trained.model.state_dict())
    chance = torch.get_rng_state()
    store.plan(trained.model, loss=1e-3, data=trained.batches[:1])
    assert torch.equal(torch.get_rng_state(), chance)
    assert trained.model.training
    assert not trained.model[4].training
    assert not trained.model[0].weight.requires_grad
    after = trained.model.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before)


class Odd(nn.Module):
    """Tied, frozen, unused and functional weights, attention, a transposed layer, groups."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.convolution = nn.Conv1d(16, 16, 3, padding="same", groups=4)
        self.by_hand = nn.Parameter(torch.randn(16, 16) / 4)
        self.unused = nn.Parameter(torch.randn(30))
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.short = nn.Linear(16, 16, dtype=torch.bfloat16)
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        x = x + self.attention(x, x, x)[0]
        x = x + self.convolution(x.transpose(1, 2)).transpose(1, 2)
        x = x + x @ self.by_hand + self.frozen(x)
        x = x + self.short(x.bfloat16()).float()
        return self.head(x)


def test_unusual_models_keep_their_budget(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Odd()
    tokens = torch.randint(20, (16, 12))
    batch = (tokens, (tokens + 1) % 20)
    before = mean_loss(model, [batch], default_objective)
    done = store.save(tmp_path / "a.encke", model, loss=1e-2, data=[batch])
    other = Odd()
    store.load(tmp_path / "a.encke", other)
    assert mean_loss(other, [batch], default_objective) - before <= 1e-2 * before * 1.001
    assert other.head.weight is other.table.weight
    assert float((other.unused - model.unused).detach().abs().max()) < 0.1
    assert done.ratio > 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective",
    [
        lambda m, b: 3.0 * F.cross_entropy(m(b[0]), b[1]),
        lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none").mean(),
        lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="sum"),
        lambda m, b: F.nll_loss(F.log_softmax(m(b[0]), -1), b[1], ignore_index=3),
        lambda m, b: F.cross_entropy(m(b[0]), b[1], label_smoothing=0.1),
        lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), F.one_hot(b[1], 10).float()),
        lambda m, b: F.mse_loss(m(b[0]), F.one_hot(b[1], 10).float()),
        lambda m, b: m(b[0]).logsumexp(1).mean() - m(b[0]).gather(1, b[1][:, None]).mean(),
    ],
    ids=["scaled", "none", "sum", "nll", "smooth", "binary", "squares", "by hand"],
)
def test_any_objective_keeps_its_budget(tmp_path: Path, trained: Any, objective: Any) -> None:
    data = trained.batches[:2]
    before = mean_loss(trained.model, data, objective)
    path = tmp_path / "a.encke"
    done = store.save(path, trained.model, loss=1e-3, data=data, objective=objective)
    store.load(path, trained.model)
    assert mean_loss(trained.model, data, objective) - before <= 1e-3 * abs(before) * 1.001
    assert done.ratio > 4
    told = done.report["budget"]
    assert 0.1 < told["predicted"] / told["allowed"] < 4


def test_without_data_the_second_moments_stand_in_and_the_file_says_so(
    tmp_path: Path, trained: Any
) -> None:
    done = store.save(
        tmp_path / "a.encke", trained.model, trained.optimizer, loss=1e-3, examples=128
    )
    assert "second moments of AdamW, 128 labels" in done.report["budget"]["curvature"]
    assert done.report["budget"]["measured"] is None
    assert done.ratio > 4
    assumed = store.plan(trained.model, trained.optimizer, loss=1e-3)
    assert "assumed" in assumed.source
    with pytest.raises(StoreError, match="data="):
        store.plan(trained.model, torch.optim.SGD(trained.model.parameters()), loss=1e-3)
    with pytest.raises(StoreError, match="data="):
        store.plan(trained.model, loss=1e-3)


def test_an_objective_that_gives_no_loss_is_refused(trained: Any) -> None:
    with pytest.raises(StoreError, match="objective"):
        store.plan(trained.model, loss=1e-3, data=[torch.ones(3)])
    with pytest.raises(StoreError, match="one number"):
        store.plan(trained.model, loss=1e-3, data=[1], objective=lambda m, b: torch.ones(3))
    with pytest.raises(StoreError, match="empty"):
        store.plan(trained.model, loss=1e-3, data=[])


@pytest.mark.slow
def test_a_budget_in_a_metric_is_kept(tmp_path: Path, trained: Any) -> None:
    def evaluate(model: nn.Module) -> float:
        right = [(model(x).argmax(1) == y).float().mean() for x, y in trained.batches]
        return 100 * float(sum(right)) / len(right)

    trained.model.eval()
    before = evaluate(trained.model)
    for data in (None, trained.batches[:3]):
        done = store.save(
            tmp_path / "a.encke", trained.model, accuracy=0.3, evaluate=evaluate, data=data
        )
        other = copy.deepcopy(trained.model)
        store.load(tmp_path / "a.encke", other)
        assert evaluate(other.eval()) >= before - 0.3 - 1e-4
        assert done.ratio > 6


def test_feedback_never_does_worse_than_the_nearest_in_the_metric_of_its_inputs() -> None:
    torch.manual_seed(0)
    mix = torch.randn(64, 64) / 8
    x = torch.randn(2000, 64) @ (mix + torch.eye(64) * 0.2)
    moment = (x.T @ x).double() / 2000
    weight = torch.randn(32, 64) * 0.1
    chosen = correction(moment)
    assert chosen is not None
    step = 0.05
    best = rounded(weight, step, step / 2, chosen) * step - weight
    near = torch.round(weight / step) * step - weight

    def cost(error: torch.Tensor) -> float:
        return float(((error.double() @ moment) * error.double()).sum())

    assert cost(best) < 0.7 * cost(near)
    assert float(best.abs().max()) <= step * 1.0001
    assert correction(torch.zeros(4, 4).double()) is None
