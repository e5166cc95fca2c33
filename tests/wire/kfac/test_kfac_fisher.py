"""The factors are those of the mean loss, however the batch and the loop are made."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from kfac_nets import after_one_step, batch, empirical, factors, gradients, network
from torch import nn

from encke.wire.kfac import KFAC


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


def test_a_forward_pass_without_backward_does_not_count() -> None:
    x, target = batch(9)
    model = network()
    pre = empirical(model)
    model(batch(30)[0])
    F.cross_entropy(model(x), target).backward()
    pre.step()
    torch.testing.assert_close(gradients(model), after_one_step(x, target))
