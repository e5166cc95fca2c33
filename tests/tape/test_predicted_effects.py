"""What closed forms and trials on a few rows predict is what an error does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from watching import Gating, Watching

import encke
from encke.tape import Tape
from encke.tape.effects import trials
from encke.tape.effects.rows import Rows

NORMS = {
    "batch norm": (nn.BatchNorm2d(16), (16, 16, 12, 12)),
    "batch norm of rows": (nn.BatchNorm1d(64), (512, 64)),
    "layer norm": (nn.LayerNorm(64), (512, 64)),
    "layer norm without weight": (nn.LayerNorm(64, elementwise_affine=False), (512, 64)),
    "group norm": (nn.GroupNorm(4, 16), (16, 16, 12, 12)),
    "instance norm": (nn.InstanceNorm2d(16, affine=True), (16, 16, 12, 12)),
}


def effects_of(policy: Watching, output: Callable[[Tensor], Tensor], shape: object) -> Watching:
    torch.manual_seed(0)
    x = (2 * torch.randn(shape) + 1).requires_grad_()  # type: ignore[call-overload]
    with Tape(policy):
        out = output(x * 1)
    (out * torch.randn_like(out)).sum().backward()
    return policy


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_the_closed_form_of_a_norm_predicts_the_true_error(name: str, normalise: bool) -> None:
    layer, shape = NORMS[name]
    policy = Watching(
        encke.Absolute(0.2), codec="fixed", derive=False, check=True, normalise=normalise
    )
    effects_of(policy, layer, shape)
    (effect,) = [e for e in policy.effects if "Norm" in e.consumer.op]
    assert effect.measured is not None
    own, stream = effect.measured
    assert effect.stream == pytest.approx(stream, rel=0.35)
    if effect.parameter is not None:
        assert effect.probed == pytest.approx(own, rel=0.6)


def test_the_closed_form_holds_where_a_gate_leaves_values_out() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 4, 3, padding=1),
    )
    policy = Gating(0.2, check=True)
    encke.attach(model, policy=policy)
    out = model(torch.randn(16, 3, 12, 12))
    (out * torch.randn_like(out)).sum().backward()
    (effect,) = [e for e in policy.effects if "Norm" in e.consumer.op]
    assert effect.measured is not None
    assert effect.probed == pytest.approx(effect.measured[0], rel=0.6)
    assert effect.stream > 0


def attention(x: Tensor) -> Tensor:
    q, k, v = x.view(32, 4, 16, 24).chunk(3, dim=-1)
    return F.scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous())


TRIED: dict[str, Callable[[Tensor], Tensor]] = {
    "Gelu": F.gelu,
    "Silu": F.silu,
    "Mish": F.mish,
    "Hardswish": F.hardswish,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Softmax": lambda x: F.softmax(x, -1),
    "Mul": lambda x: x * (x + 1),
    "Pow": lambda x: x**3,
    "Bmm": lambda x: torch.bmm(x.view(32, 32, 48), (x + 1).view(32, 48, 32)),
    "ScaledDotProductFlashAttentionForCpu": attention,
}


@pytest.mark.parametrize("op", TRIED)
def test_a_trial_on_some_rows_predicts_the_true_error(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "TRIED", 1 << 14)
    policy = Watching(encke.RmsRelative(0.05), codec="fixed", derive=False, check=True)
    shape = (32, 4 * 16 * 24)
    effects_of(policy, TRIED[op], shape)
    found = [e for e in policy.effects if e.consumer.op == op and not e.products]
    assert found
    for effect in found:
        assert effect.measured is not None
        assert effect.stream == pytest.approx(effect.measured[1], rel=0.6, abs=1e-9)


def test_every_op_that_can_be_tried_has_a_case() -> None:
    assert set(TRIED) | {"SafeSoftmax"} == set(trials._backwards)


def test_a_check_holds_some_rows_only() -> None:
    x = torch.randn(64, 1 << 15)
    rows = Rows.of(x, most=1 << 18, seed=3)
    assert rows.times == 8
    assert rows.cut(x, 2).shape == (8, 1 << 15)
    assert rows.size((64, 5, 6), 3) == (8, 5, 6)
    assert rows.size((5, 6), 3) == (5, 6)
