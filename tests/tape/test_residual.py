"""A residual block's last norm follows from what goes into the block and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from watching import Gating, check_two_backwards

import encke
from encke.tape import Site
from encke.tape.storage.recorder import TensorRecorder

LAST = "norm/NativeBatchNorm.input"
FINE = 1e-5


class Block(nn.Module):
    """Something kept behind a ReLU, then a block that `join` ends, then a convolution."""

    def __init__(self, join: Callable[[Block, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.branch = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.shortcut = nn.Conv2d(16, 16, 1, bias=False)
        self.other = nn.BatchNorm2d(16)
        self.head = nn.Conv2d(16, 8, 3, padding=1)
        self.join = join
        with torch.no_grad():
            for norm in (self.norm, self.other):
                norm.weight.uniform_(0.7, 1.5)
                norm.bias.uniform_(-0.5, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.head(self.join(self, self.norm(self.branch(x)), x))


def added(_net: Block, y: Tensor, x: Tensor) -> Tensor:
    y = y + x
    return F.relu(y)


def added_first(_net: Block, y: Tensor, x: Tensor) -> Tensor:
    y = x + y
    return F.relu(y)


def in_place(_net: Block, y: Tensor, x: Tensor) -> Tensor:
    y += x
    return y.relu_()


def with_a_shortcut(net: Block, y: Tensor, x: Tensor) -> Tensor:
    y = y + net.other(net.shortcut(x))
    return F.relu(y)


FOLLOW = [added, added_first, in_place, with_a_shortcut]


def of_a_part(_net: Block, y: Tensor, x: Tensor) -> Tensor:
    y = torch.add(y, x, alpha=0.5)
    return F.relu(y)


def broadcast(_net: Block, y: Tensor, x: Tensor) -> Tensor:
    y = y + x[:, :, :1]
    return F.relu(y)


def of_something_not_kept(_net: Block, y: Tensor, x: Tensor) -> Tensor:
    y = y + x.mean((2, 3), keepdim=True).expand_as(x)
    return F.relu(y)


STAY = [of_a_part, broadcast, of_something_not_kept]


def run(
    join: Any,
    policy: Gating | None,
    *,
    scale: float = 1.0,
    layout: Any = torch.contiguous_format,
) -> tuple[dict[str, Tensor], Any]:
    torch.manual_seed(0)
    net = Block(join).to(memory_format=layout)
    with torch.no_grad():
        net.norm.weight.mul_(scale)
    tape = None if policy is None else encke.attach(net, policy=policy)
    out = net(torch.randn(8, 3, 12, 12).to(memory_format=layout))
    target = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    F.mse_loss(out, target).backward()
    return {n: p.grad for n, p in net.named_parameters() if p.grad is not None}, tape


def followed(tape: Any) -> list[str]:
    return [str(r.site) for r in tape.records if "the sum less" in r.why]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("join", FOLLOW, ids=lambda f: f.__name__)
def test_the_gradients_are_those_with_the_norm_kept(
    join: Any, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, tape = run(join, Gating(FINE), layout=layout)
    assert followed(tape) == [LAST]
    assert tape.records.get(Site("norm", "NativeBatchNorm", "input")).stored == 0
    monkeypatch.setattr(TensorRecorder, "_follows", lambda *_: False)
    kept, tape = run(join, Gating(FINE), layout=layout)
    assert not followed(tape)
    for name, gradient in kept.items():
        assert torch.allclose(found[name], gradient, rtol=2e-3, atol=1e-6), name


@pytest.mark.parametrize("join", STAY, ids=lambda f: f.__name__)
def test_where_it_does_not_follow_it_is_kept(join: Any) -> None:
    exact, _ = run(join, None)
    found, tape = run(join, Gating(FINE))
    assert followed(tape) == []
    for name in ("norm.weight", "norm.bias", "head.weight"):
        assert torch.allclose(found[name], exact[name], rtol=1e-3, atol=1e-5), name


def test_with_a_small_weight_it_is_kept() -> None:
    assert followed(run(added, Gating(FINE), scale=0.3)[1]) == []
    assert followed(run(added, Gating(FINE), scale=0.0)[1]) == []


def test_errors_of_both_ends_are_predicted_as_they_are_measured() -> None:
    policy = Gating(0.1, check=True)
    run(added, policy)
    effects = [e for e in policy.effects if str(e.consumer) == LAST]
    assert len({e.site for e in effects}) == 2
    for effect in effects:
        assert effect.measured is not None
        # One draw of sixteen numbers each.
        assert 1 / 4 < effect.measured[0] / effect.predicted < 4


def test_less_is_held_than_with_the_norm_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tape = run(added, Gating(0.1))
    fewer, _ = tape.last_forward
    monkeypatch.setattr(TensorRecorder, "_follows", lambda *_: False)
    _, tape = run(added, Gating(0.1))
    assert fewer < 0.85 * tape.last_forward[0]


def test_backward_may_run_twice() -> None:
    torch.manual_seed(0)
    check_two_backwards(Block(with_a_shortcut), torch.randn(8, 3, 12, 12))


def test_a_result_of_relu_is_packed_without_its_zeros() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3))
    policy = Gating(0.05)
    tape = encke.attach(net, policy=policy)
    seen: dict[str, Any] = {}
    tape.packed.append(lambda slot, t: seen.__setitem__(str(slot.site), (slot, t.clone())))
    out = net(torch.randn(8, 3, 12, 12))
    slot, exact = seen["2/Convolution.input"]
    assert slot.values == int((exact > 0).sum())
    decoded = slot.decoded()
    assert bool((decoded[exact == 0] == 0).all())
    assert float((decoded - exact).abs().max()) <= 0.05
    out.sum().backward()
    (effect,) = [e for e in policy.effects if str(e.consumer) == "2/Convolution.input"]
    assert effect.mean_square == pytest.approx(
        0.05**2 / 3 * slot.values / exact.numel(), rel=1e-6
    )
