"""A training goes on from a file: exactly, or with errors that its optimizer bears."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from digits_network import network
from torch import nn

import encke
from encke import store
from encke.errors import BoundError
from encke.store import Moments, StoreError
from encke.store.moments import optimizer_rules

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "plain": lambda p: torch.optim.SGD(p, lr=0.05),
    "rprop": lambda p: torch.optim.Rprop(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=3),
}


def copied(trained: Any, optimizer: str = "adamw") -> tuple[nn.Module, Any]:
    import copy

    model = copy.deepcopy(trained.model)
    return model, OPTIMIZERS[optimizer](model.parameters())


def run(model: nn.Module, optimizer: Any, batches: list[Any]) -> list[float]:
    losses = []
    for x, y in batches:

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(float(optimizer.step(closure).detach()))
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_exact_checkpoint_goes_on_bit_for_bit(
    tmp_path: Path, trained: Any, name: str
) -> None:
    model, optimizer = copied(trained, name)
    run(model, optimizer, trained.batches[:4])
    store.save(tmp_path / "a.encke", model, optimizer)
    other, again = copied(trained, name)
    store.load(tmp_path / "a.encke", other, again)
    ahead = trained.batches[4:8]
    assert run(model, optimizer, ahead) == run(other, again, ahead)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


# Not LBFGS: its line search amplifies the smallest difference.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "lbfgs"])
def test_a_checkpoint_with_errors_goes_on_close_to_the_uninterrupted_run(
    tmp_path: Path, trained: Any, name: str
) -> None:
    model, optimizer = copied(trained, name)
    run(model, optimizer, trained.batches[:8])
    done = store.save(
        tmp_path / "a.encke", model, optimizer, loss=1e-3, data=trained.batches[:2]
    )
    other, again = copied(trained, name)
    store.load(tmp_path / "a.encke", other, again)
    ahead = trained.batches[4:8]
    plain, resumed = run(model, optimizer, ahead), run(other, again, ahead)
    assert sum(resumed) == pytest.approx(sum(plain), rel=0.05)
    if name in ("adamw", "sgd"):
        assert done.exact == []
    if name == "rprop":
        assert any("step_size" in state for state in done.exact)


def test_second_moments_stay_within_a_factor_and_first_ones_within_a_share_of_the_root(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    v = torch.rand(64, 300) ** 8
    v[3], v[:, 5] = 0.0, 1e-30
    m = torch.randn(64, 300) * v.sqrt()
    state = {"state": {0: {"exp_avg": m, "exp_avg_sq": v}}, "param_groups": []}
    moments = Moments(second=1.5, first=0.25)
    store.save(tmp_path / "a.encke", optimizer=state, moments=moments)
    found = store.load(tmp_path / "a.encke")["optimizer"]["state"][0]
    live = v > 0
    ratio = (found["exp_avg_sq"].double() / v.double())[live]
    assert float(ratio.max()) <= 1.5 + 1e-5
    assert float(ratio.min()) >= 1 / 1.5 - 1e-5
    assert torch.equal(found["exp_avg_sq"] == 0, ~live)
    assert bool((found["exp_avg"][~live] == 0).all())
    root = found["exp_avg_sq"].double().sqrt()
    assert bool(((found["exp_avg"] - m).double().abs() <= 0.25 * root * (1 + 1e-5)).all())


def test_second_moments_cannot_be_given_an_absolute_bound(tmp_path: Path, trained: Any) -> None:
    for bound in (encke.Absolute(1e-6), encke.RmsRelative(0.1), encke.RangeRelative(0.01)):
        with pytest.raises(BoundError, match="second moment"):
            store.save(
                tmp_path / "a.encke", trained.model, trained.optimizer,
                bounds={"optimizer/*": bound},
            )  # fmt: skip
    pointwise = {"optimizer/*exp_avg_sq": encke.PointwiseRelative(0.1)}
    store.save(tmp_path / "a.encke", trained.model, trained.optimizer, bounds=pointwise)
    with pytest.raises(BoundError, match="factor"):
        Moments(second=0.5)


def test_states_that_are_not_recognised_are_exact_and_listed(tmp_path: Path) -> None:
    state = {
        "state": {0: {"exp_avg_sq": torch.rand(99), "mystery": torch.rand(99)}},
        "param_groups": [],
    }
    rules, exact = optimizer_rules("SomebodyElses", state["state"], Moments())
    assert list(rules) == ["optimizer/state/0/exp_avg_sq"]
    assert exact == ["optimizer/state/0/mystery"]
    done = store.save(tmp_path / "a.encke", optimizer=state, moments=Moments())
    assert done.exact == exact
    found = store.load(tmp_path / "a.encke")["optimizer"]["state"][0]
    assert torch.equal(found["mystery"], state["state"][0]["mystery"])


def unequal(name: str) -> tuple[nn.Module, Any]:
    if name == "other shapes":
        model: nn.Module = nn.Sequential(nn.Conv2d(1, 9, 3), nn.BatchNorm2d(9))
    elif name == "fewer tensors":
        model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1))
    else:
        model = network()
    kind = torch.optim.SGD if name == "other optimizer" else torch.optim.AdamW
    parameters = list(model.parameters())
    if name == "other groups":
        return model, kind([{"params": parameters[:1]}, {"params": parameters[1:]}], lr=0.1)
    return model, kind(parameters, lr=0.1)


@pytest.mark.parametrize(
    "name", ["other shapes", "fewer tensors", "other optimizer", "other groups"]
)
def test_a_file_that_does_not_fit_is_refused_and_nothing_is_changed(
    tmp_path: Path, trained: Any, name: str
) -> None:
    store.save(tmp_path / "a.encke", trained.model, trained.optimizer)
    model, optimizer = unequal(name)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(StoreError, match=r"a\.encke"):
        store.load(tmp_path / "a.encke", model, optimizer)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert not optimizer.state


def test_a_model_saved_alone_gives_no_optimizer(tmp_path: Path, trained: Any) -> None:
    store.save(tmp_path / "a.encke", trained.model)
    with pytest.raises(StoreError, match="without an optimizer"):
        store.load(tmp_path / "a.encke", trained.model, trained.optimizer)
    store.load(tmp_path / "a.encke", trained.model)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e9, 1.0])
def test_first_moments_that_no_root_bounds_are_kept_exactly(tmp_path: Path, odd: float) -> None:
    v = torch.rand(70, 1000) + 0.1
    v[0] = 0.0
    m = 0.1 * v.sqrt()
    m[0, 3] = odd
    state = {"state": {0: {"exp_avg": m, "exp_avg_sq": v}}, "param_groups": []}
    store.save(tmp_path / "a.encke", optimizer=state, moments=Moments())
    found = store.load(tmp_path / "a.encke")["optimizer"]["state"][0]["exp_avg"]
    assert torch.equal(found.nan_to_num(7.0), m.nan_to_num(7.0))
