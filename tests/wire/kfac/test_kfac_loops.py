"""What K-FAC promises a training loop: clips, lists, checkpoints, models left as they were."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kfac_nets import after_one_step, batch, empirical, gradients, network
from torch import Tensor, nn

from encke.errors import UnsupportedError
from encke.wire.kfac import KFAC, UncoveredWarning
from encke.wire.kfac.settings import Settings


def test_the_clip_limits_the_step_and_may_be_off() -> None:
    x, target = batch(8)
    plain = after_one_step(x, target)
    model = network()
    pre = empirical(model, kl_clip=1e-4, lr=0.5)
    F.cross_entropy(model(x), target).backward()
    raw = gradients(model)
    pre.step()
    change = 0.25 * sum(float((a * b).sum()) for a, b in zip(raw, plain, strict=True))
    assert pre.clip == pytest.approx((1e-4 / change) ** 0.5)
    torch.testing.assert_close(gradients(model), [pre.clip * g for g in plain])


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(6, 4)
        self.unused = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.used(x)
        return y


@pytest.mark.parametrize("fisher", ["sampled", "empirical"])
def test_a_layer_that_is_not_used_stays_without_gradient(fisher: str) -> None:
    model = Branches().double()
    pre = empirical(model, fisher=fisher)
    x, target = batch(8)
    for _ in range(2):
        output = model(x)
        if fisher == "sampled":
            pre.sample(output)
        F.cross_entropy(output, target).backward()
        pre.step()
    assert model.unused.weight.grad is None
    assert model.used.weight.grad is not None


def test_every_parameter_that_is_not_covered_is_named_with_a_reason() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    model = nn.ModuleDict(
        {
            "norm": nn.LayerNorm(4),
            "own": Own(4, 4),
            "frozen": nn.Linear(4, 4),
            "tied_in": nn.Embedding(5, 4),
            "tied_out": nn.Linear(4, 5, bias=False),
            "spectral": nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            "attention": nn.MultiheadAttention(4, 2, add_bias_kv=True),
            "fine": nn.Linear(4, 4),
        }
    )
    model["frozen"].weight.requires_grad_(False)
    model["tied_out"].weight = model["tied_in"].weight
    with pytest.warns(UncoveredWarning, match=r"11 parameters(?s:.)*norm\.weight \(4,\)"):
        pre = KFAC(model)
    reasons = {item.name: item.reason for item in pre.uncovered}
    assert "LayerNorm" in reasons["norm.weight"]
    assert "forward of its own" in reasons["own.weight"]
    assert "does not learn" in reasons["frozen.bias"]
    assert "tied_in, tied_out" in reasons["tied_in.weight"]
    assert "parametrize" in reasons["spectral.bias"]
    assert "bias_k" in reasons["attention.bias_k"]
    assert not any(name.startswith("fine") for name in reasons)
    with pytest.raises(UnsupportedError, match=r"norm\.weight"):
        KFAC(model, uncovered="raise")


def train(model: nn.Module, pre: KFAC, steps: range) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps:
        x, target = batch(16, seed=step)
        optimizer.zero_grad()
        output = model(x)
        pre.sample(output)
        F.cross_entropy(output, target).backward()
        pre.step()
        optimizer.step()


@pytest.mark.parametrize("method", ["inverse", "eigen"])
def test_a_resumed_training_takes_the_same_steps(method: str, tmp_path: Any) -> None:
    options = {"damping": 0.01, "factor_interval": 3, "inverse_interval": 5, "method": method}
    model = network()
    pre = KFAC(model, **options)
    train(model, pre, range(7))
    torch.save({"model": model.state_dict(), "kfac": pre.state_dict()}, tmp_path / "state.pt")
    train(model, pre, range(7, 14))
    state = torch.load(tmp_path / "state.pt")
    resumed = network()
    resumed.load_state_dict(state["model"])
    later = KFAC(resumed, **options)
    later.load_state_dict(state["kfac"])
    train(resumed, later, range(7, 14))
    torch.testing.assert_close(resumed.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_a_state_of_another_model_is_refused() -> None:
    pre = KFAC(network())
    other = KFAC(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double())
    with pytest.raises(UnsupportedError, match="shape"):
        pre.load_state_dict(other.state_dict())
    with pytest.raises(UnsupportedError, match="another model"):
        pre.load_state_dict(KFAC(nn.Linear(3, 3)).state_dict())


ATTENTION_CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "masked": ({"batch_first": True}, {"attn_mask": torch.ones(3, 3).triu(1).bool()}),
    "causal, no weights": (
        {},
        {
            "attn_mask": nn.Transformer.generate_square_subsequent_mask(3),
            "is_causal": True,
            "need_weights": False,
        },
    ),
    "padding, each head": (
        {"add_bias_kv": True, "add_zero_attn": True},
        {
            "key_padding_mask": torch.tensor([[False, True, False]] * 2),
            "average_attn_weights": False,
        },
    ),
    "one sequence": ({"dropout": 0.5}, {}),
}


@pytest.mark.parametrize("name", ATTENTION_CALLS)
def test_watched_attention_computes_what_it_did_before(name: str) -> None:
    made, called = ATTENTION_CALLS[name]
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, **made)
    shape = (
        (3, 4)
        if name == "one sequence"
        else (2, 3, 4)
        if made.get("batch_first")
        else (3, 2, 4)
    )
    x = torch.randn(shape)

    def outcome() -> list[Any]:
        torch.manual_seed(7)
        layer.zero_grad()
        y, weights = layer(x, x, x, **called)
        y.square().sum().backward()
        return [y, weights, *gradients(layer)]

    before = outcome()
    pre = KFAC(layer, uncovered="ignore", fisher="empirical")
    torch.testing.assert_close(outcome(), before)
    assert sum(pre._factors.seen) > 0
    pre.detach()
    assert type(layer) is nn.MultiheadAttention


def test_copies_of_a_model_are_not_watched() -> None:
    model = nn.ModuleList([nn.Linear(4, 4), nn.MultiheadAttention(4, 2)])
    pre = KFAC(model, fisher="empirical")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        x = twin[0](torch.randn(3, 2, 4))
        twin[1](x, x, x)[0].sum().backward()
    assert sum(pre._factors.seen) == 0


def test_a_step_that_needs_a_sample_says_so() -> None:
    model = network()
    pre = KFAC(model)
    x, target = batch(4)
    F.cross_entropy(model(x), target).backward()
    with pytest.raises(UnsupportedError, match=r"pre\.sample"):
        pre.step()
    with pytest.raises(UnsupportedError, match="saw no layer"):
        pre.sample(torch.zeros(4, 4, requires_grad=True))
    pre.sample(model(x))
    with pytest.raises(UnsupportedError, match="its 1 samples already"):
        pre.sample(model(x))


def test_evaluation_and_inference_are_not_looked_at() -> None:
    model = network()
    pre = empirical(model)
    with torch.no_grad():
        model(batch(4)[0])
    model.eval()
    F.cross_entropy(model(batch(4)[0]), batch(4)[1]).backward()
    assert pre._factors.terms == 0
    assert sum(pre._factors.seen) == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("damping", 0.0),
        ("decay", 1.0),
        ("fisher", "exact"),
        ("method", "lu"),
        ("factor_interval", 0),
        ("kl_clip", -1.0),
        ("worker_fraction", 0.0),
        ("factor_error", 2.0),
        ("accumulation", 1.5),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=option):
        Settings(**{option: value})
    with pytest.raises(UnsupportedError, match="given speed"):
        KFAC(network(), speed=1)
