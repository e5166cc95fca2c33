"""What K-FAC promises beside the arithmetic: invariances, loops, clips, lists, checkpoints."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encke.errors import UnsupportedError
from encke.wire.kfac import KFAC, UncoveredWarning
from encke.wire.kfac.settings import Settings


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def batch(n: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(4, (n,), generator=generator)


def empirical(model: nn.Module, **options: Any) -> KFAC:
    settings = {"fisher": "empirical", "damping": 0.01, "kl_clip": None, "factor_interval": 1}
    return KFAC(model, **(settings | options))


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def factors(pre: KFAC) -> list[Tensor]:
    return [
        side
        for unit in pre.state_dict()["factors"].values()
        for side in list(unit.values())[1:]
    ]


def after_one_step(x: Tensor, target: Tensor, **options: Any) -> list[Tensor]:
    model = network()
    pre = empirical(model, **options)
    F.cross_entropy(model(x), target).backward()
    pre.step()
    return gradients(model)


def test_a_batch_that_holds_every_example_twice_changes_nothing() -> None:
    x, target = batch(10)
    twice = after_one_step(torch.cat([x, x]), torch.cat([target, target]))
    torch.testing.assert_close(twice, after_one_step(x, target))


def test_micro_batches_give_what_the_whole_batch_gives() -> None:
    x, target = batch(12)
    model = network()
    pre = empirical(model, accumulation=3)
    for part, wanted in zip(x.chunk(3), target.chunk(3), strict=True):
        (F.cross_entropy(model(part), wanted) / 3).backward()
    pre.step()
    torch.testing.assert_close(gradients(model), after_one_step(x, target))


def test_a_summed_loss_has_the_same_factors_as_a_mean() -> None:
    x, target = batch(9)
    found = []
    for reduction in ("mean", "sum"):
        model = network()
        pre = empirical(model, reduction=reduction)
        F.cross_entropy(model(x), target, reduction=reduction).backward()
        pre.step()
        found.append(factors(pre))
    torch.testing.assert_close(*found)


def test_the_scale_of_a_grad_scaler_does_not_reach_the_factors() -> None:
    x, target = batch(9)
    model = network()
    pre = empirical(model, grad_scaler=lambda: 1024.0)
    (F.cross_entropy(model(x), target) * 1024).backward()
    for parameter in model.parameters():
        parameter.grad /= 1024  # what GradScaler.unscale_ does
    pre.step()
    torch.testing.assert_close(gradients(model), after_one_step(x, target))


@pytest.mark.parametrize("fisher", ["sampled", "empirical"])
def test_under_autocast_factors_are_those_of_float32_but_for_rounding(fisher: str) -> None:
    x, target = (t.float() if t.is_floating_point() else t for t in batch(64))
    found = []
    for enabled in (False, True):
        model = network().float()
        pre = empirical(model, fisher=fisher)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            output = model(x)
            loss = F.cross_entropy(output, target)
            if fisher == "sampled":
                pre.sample(output)
        loss.backward()
        pre.step()
        found.append(factors(pre))
    assert all(f.dtype is torch.float32 for f in found[1])
    for exact, rounded in zip(*found, strict=True):
        assert (exact - rounded).norm() <= 0.05 * exact.norm()


def test_overflowed_gradients_leave_the_factors_as_they_were() -> None:
    model = network()
    pre = empirical(model)
    for scale in (1.0, float("inf")):
        (F.cross_entropy(model(batch(8)[0]), batch(8)[1]) * scale).backward()
        pre.step()
        now = factors(pre)
        if scale == 1.0:
            before = now
    torch.testing.assert_close(now, before, rtol=0, atol=0)


def test_averages_have_no_trace_of_their_start() -> None:
    """After one batch they are that batch; after two, they are weighted as in Adam."""
    model = network()
    pre = empirical(model, decay=0.9)
    alone = []
    for seed in (1, 2):
        fresh = empirical(other := network())
        x, target = batch(8, seed)
        F.cross_entropy(other(x), target).backward()
        fresh.step()
        alone.append(factors(fresh))
        F.cross_entropy(model(x), target).backward()
        pre.step()
        if seed == 1:
            torch.testing.assert_close(factors(pre), alone[0])
    expected = [(0.9 * 0.1 * a + 0.1 * b) / (1 - 0.81) for a, b in zip(*alone, strict=True)]
    torch.testing.assert_close(factors(pre), expected)


def test_the_sampled_fisher_of_a_classifier_is_its_softmax_covariance() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 4).double()
    x = torch.randn(16, 3, dtype=torch.float64)
    pre = KFAC(model, decay=0.9999, factor_interval=1, inverse_interval=10**6, kl_clip=None)
    for _ in range(400):
        output = model(x)
        pre.sample(output, loss="cross_entropy")
        pre.step()
    p = model(x).detach().softmax(1)
    expected = p.diag_embed().mean(0) - p.mT @ p / len(x)
    found = pre._factors.at[0, "rows"].mean[0]
    assert (found - expected).norm() < 0.03 * expected.norm()
    assert model.weight.grad is None  # sampling leaves the gradients alone


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("mse", 2.0), ("binary_cross_entropy", 0.25)],
)
def test_the_sampled_fisher_is_the_loss_s_own_curvature(loss: str, expected: float) -> None:
    """For outputs of zero the second derivatives of both losses are known."""
    model = nn.Linear(3, 5).double()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    pre = KFAC(model, decay=0.9999, factor_interval=1, inverse_interval=10**6, kl_clip=None)
    for _ in range(300):
        pre.sample(model(torch.ones(16, 3, dtype=torch.float64)), loss=loss)  # type: ignore[arg-type]
        pre.step()
    found = pre._factors.at[0, "rows"].mean[0]
    wanted = torch.eye(5, dtype=torch.float64) * expected / 5  # a mean over 16·5 terms
    assert (found - wanted).norm() < 0.05 * wanted.norm()


def test_fisher_uses_a_pass_of_its_own_and_leaves_buffers_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    pre = KFAC(model, uncovered="ignore")
    x = torch.randn(32, 6)
    before = copy.deepcopy(model.state_dict())
    pre.fisher(x[:8], loss="cross_entropy")
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert pre._factors.terms == 8
    F.cross_entropy(model(x), torch.zeros(32, dtype=torch.int64)).backward()
    pre.step()
    assert all(n == 1 for n in pre._factors.updates)


def test_in_place_activations_do_not_change_what_is_seen() -> None:
    x, target = batch(8)
    found = []
    for inplace in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(6, 8), nn.ReLU(inplace=inplace), nn.Linear(8, 4)
        ).double()
        for fisher in ("empirical", "sampled"):
            pre = empirical(model, fisher=fisher)
            model.zero_grad()
            output = model(x)
            if fisher == "sampled":
                pre.sample(output)
            F.cross_entropy(output, target).backward()
            pre.step()
            found.append(factors(pre))
            pre.detach()
    torch.testing.assert_close(found[:2], found[2:])


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
