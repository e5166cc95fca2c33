"""Policies set the bounds that they promise, learn, and remember."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import encke
from encke.bound.allocate import Demand, water_fill
from encke.control.bits import allocate_bits
from encke.control.guard import Guard
from encke.control.reference import Reference
from encke.tape import GradientEffect, Site
from encke.tape.effects.probe import difference


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 0
) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(32, 3, 16, 16, generator=generator)
        target = torch.randint(0, 10, (32,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), target).backward()
        optimizer.step()


def gradient_error(model: nn.Module, tape: encke.Tape, x: Tensor, y: Tensor) -> float:
    """Mean over parameters of ‖Δg‖²/‖g‖² against plain autograd, over several ditherings."""

    def gradients() -> list[Tensor]:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        return [p.grad.clone() for p in model.parameters() if p.ndim > 1]

    lossy = [gradients() for _ in range(4)]
    tape.detach()
    exact = gradients()
    relative = [
        float((a - b).square().sum() / b.square().sum())
        for run in lossy
        for a, b in zip(run, exact, strict=True)
    ]
    return sum(relative) / len(relative)


demands = st.dictionaries(
    st.text(min_size=1, max_size=3),
    st.builds(
        Demand,
        values=st.integers(1, 10**8),
        sensitivity=st.floats(1e-12, 1e12),
        largest=st.one_of(st.just(math.inf), st.floats(1e-6, 1e3)),
    ),
    min_size=1,
    max_size=8,
)


@given(demands, st.floats(1e-9, 1e3))
def test_allocated_bounds_stay_in_the_budget(wants: dict[str, Demand], variance: float) -> None:
    bounds = water_fill(wants, variance=variance)
    assert bounds.keys() == wants.keys()
    used = sum(wants[n].sensitivity * b**2 for n, b in bounds.items())
    assert used <= variance * (1 + 1e-9)
    assert all(b <= wants[n].largest for n, b in bounds.items())
    if all(b < wants[n].largest for n, b in bounds.items()):
        assert used == pytest.approx(variance)


def test_no_shift_between_two_tensors_saves_bits() -> None:
    wants = {
        "a": Demand(values=1000, sensitivity=2.0),
        "b": Demand(values=50, sensitivity=0.01),
    }

    def bits(bounds: dict[str, float]) -> float:
        return sum(-wants[n].values * math.log2(b) for n, b in bounds.items())

    best = water_fill(wants, variance=0.1)
    for share in (0.9, 1.1):
        a = best["a"] * share
        left = 0.1 - wants["a"].sensitivity * a**2
        if left > 0:
            other = {"a": a, "b": math.sqrt(left / wants["b"].sensitivity)}
            assert bits(other) >= bits(best)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=2),
        st.tuples(st.integers(1, 10**6), st.floats(1e-6, 1e6)),
        min_size=1,
        max_size=6,
    ),
    st.floats(1, 8),
)
def test_shared_out_bits_keep_their_mean(
    wants: dict[str, tuple[int, float]], mean: float
) -> None:
    bits = allocate_bits(wants, mean=mean)
    total = sum(values for values, _ in wants.values())
    assert sum(bits[n] * wants[n][0] for n in wants) <= mean * total + 1e-6
    assert set(bits.values()) <= {1, 2, 4, 8}


@pytest.mark.parametrize("tolerance", [0.003, 0.03])
def test_gradient_error_follows_the_tolerance(tolerance: float) -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tape = encke.attach(
        model, optimizer, tolerance=tolerance, reference="gradient", refresh=4, guard=0
    )
    train(model, optimizer, 12)
    x, y = torch.randn(64, 3, 16, 16), torch.randint(0, 10, (64,))
    found = gradient_error(model, tape, x, y)
    assert 0.4 * tolerance < found < 1.8 * tolerance


def test_larger_tolerance_keeps_less() -> None:
    kept = []
    for tolerance in (0.001, 0.01, 0.1):
        model = small_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        tape = encke.attach(model, optimizer, tolerance=tolerance, refresh=4)
        train(model, optimizer, 10)
        tape.ledger.reset_peak()
        train(model, optimizer, 1)
        kept.append(tape.ledger.stored_peak)
    assert kept[0] > kept[1] > kept[2]


def test_a_restored_controller_goes_on_with_its_bounds() -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    tape = encke.attach(model, optimizer)
    train(model, optimizer, 6)
    saved = tape.state_dict()
    again = encke.attach(small_net(), tolerance=0.01)
    again.load_state_dict(saved)
    assert again.policy.bounds == tape.policy.bounds
    assert again.step == tape.step
    assert again.state_dict() == saved


@pytest.mark.parametrize(
    "kind", ["gradient", "noise", "step", "momentum", "magnitude", "second_moment"]
)
def test_every_reference_gives_a_scale(kind: str) -> None:
    model = small_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tape = encke.attach(model, optimizer, reference=kind, refresh=4, guard=0)
    train(model, optimizer, 6)
    reference = tape.policy.reference
    named = dict(model.named_parameters())
    assert reference.of("0.weight", named["0.weight"]) > 0
    assert tape.policy.bounds


def test_momentum_is_the_sum_that_the_optimizer_steps_along() -> None:
    weight = nn.Parameter(torch.zeros(100))
    gradients = [torch.randn(100) for _ in range(20)]
    expected = torch.zeros(100)
    sgd = torch.optim.SGD([weight], lr=0.0, momentum=0.9)
    adam = torch.optim.Adam([weight], lr=0.0, betas=(0.9, 0.99))
    for g in gradients:
        expected = 0.9 * expected + g
        weight.grad = g
        sgd.step()
        adam.step()
    square = float(expected.square().sum())
    assert Reference("momentum", [sgd]).of("w", weight) == pytest.approx(square, rel=1e-4)
    own = (1 - 0.9**2) * square
    assert Reference("step", [sgd]).of("w", weight) == pytest.approx(own, rel=1e-4)
    mean = Reference("noise", [adam])
    mean.see("w", 2 * square)  # less the square of (1 - β) Σ βᵏ g
    assert mean.of("w", weight) == pytest.approx((2 - 0.01) * square, rel=1e-4)


def test_adam_bears_no_more_than_its_second_moment_hides() -> None:
    weight = nn.Parameter(torch.zeros(100))
    adam = torch.optim.Adam([weight], lr=0.0, betas=(0.9, 0.99))
    for _ in range(50):
        weight.grad = torch.ones(100)  # all signal: the momentum is ten times the gradient
        adam.step()
    for kind in ("step", "momentum"):
        reference = Reference(kind, [adam])
        reference.see("w", 100.0)
        assert reference.of("w", weight) == pytest.approx(100.0)


@pytest.mark.parametrize(
    "policy",
    [
        encke.Comet(),
        encke.GroupBits(2),
        encke.GroupBits(4, adaptive=False),
        encke.Fixed(encke.RangeRelative(0.02)),
        encke.Fixed(encke.RangeRelative(0.02), dither=False),
        encke.Fixed(encke.FixedRate(4)),
    ],
    ids=["comet", "adaptive bits", "four bits", "fixed", "fixed, rounded", "rate"],
)
def test_a_network_trains_under_every_policy(policy: object) -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    tape = encke.attach(model, policy=policy)
    train(model, optimizer, 5)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert 0 < tape.ledger.stored_peak < tape.ledger.plain_peak
    policy.load_state_dict(policy.state_dict())


def test_guard_tightens_and_gives_up_in_the_end() -> None:
    guard = Guard(every=1)
    site = Site("a", "Addmm", "mat1")
    assert not guard.checks(str(site))
    guard.begin(2)
    assert guard.checks(str(site))

    def check(measured: float) -> None:
        guard.judge(
            GradientEffect(
                site=site,
                consumer=site,
                order=1,
                error=0.1,
                values=10,
                probed=1.0,
                measured=(measured, 0.0),
            )
        )

    check(1.5)
    assert guard.caution(str(site)) == 1.0
    check(10.0)
    assert guard.caution(str(site)) == 10.0
    assert not guard.distrusts(str(site))
    check(10.0)
    check(10.0)
    assert guard.distrusts(str(site))
    again = Guard(every=1)
    again.load_state_dict(guard.state_dict())
    assert again.distrusts(str(site))


def test_a_check_of_one_tensor_leaves_the_bounds_of_the_others() -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tape = encke.attach(model, optimizer, guard=3, refresh=1000, reference="gradient")
    train(model, optimizer, 5)
    before = dict(tape.policy.bounds)
    train(model, optimizer, 3)  # step 6 is checked, none is observed
    assert tape.policy.guard.measured
    assert set(before) == set(tape.policy.bounds)
    for name, bound in tape.policy.bounds.items():
        assert 0.5 < bound / before[name] < 2


def test_a_distrusted_tensor_is_kept_exact() -> None:
    model = small_net()
    tape = encke.attach(model, guard=1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), 2)
    tape.policy.guard._distrusted.add("0/Convolution.input")
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), 1)
    kept = {str(r.site): r.how for r in tape.records}
    assert kept["0/Convolution.input"] == "exact"


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": 2.0}, "tolerance"),
        ({"reference": "nonsense"}, "nonsense"),
        ({"reference": "momentum"}, "optimizer"),
        ({"policy": encke.Fixed(encke.Lossless()), "refresh": 3}, "refresh"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(wrong: dict[str, object], word: str) -> None:
    with pytest.raises(encke.UnsupportedError, match=word):
        encke.attach(small_net(), **wrong)


def test_a_tensor_whose_error_ruins_single_rows_is_kept_exact(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The mean square hides few, huge errors: of a division by something near zero, say."""
    guard, site = Guard(), Site("m", "MyDivision", "other")

    def effect(tail: float) -> GradientEffect:
        return GradientEffect(
            site=site, consumer=site, order=1, error=0.1, values=8, stream=0.01, tail=tail
        )

    guard.look_at_tail(effect(0.5))
    assert not guard.distrusts(str(site))
    guard.look_at_tail(effect(1e4))
    assert guard.distrusts(str(site))
    assert "changes a row of the gradient by 1e+02 times" in caplog.text


def test_the_tail_of_a_change_is_that_of_its_worst_row() -> None:
    one = torch.ones(100, 8)
    other = one.clone()
    other[7] += 30.0
    change = difference([one], [other], parameters=[], onward=[0])
    assert change.tail == pytest.approx(900.0)
    assert change.stream == pytest.approx(9.0)
