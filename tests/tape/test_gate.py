"""Of a norm's input, only what the ReLU behind it lets through is kept; and when not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from watching import Gating, check_two_backwards

import encke

FINE = 1e-6  # an error so small that only what is left out shows


class Net(nn.Module):
    """A convolution and a norm, then what `rest` does with the norm's output."""

    def __init__(self, rest: Callable[[Net, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.other = nn.BatchNorm2d(16)
        self.rest = rest
        with torch.no_grad():
            for norm in (self.norm, self.other):
                norm.weight.uniform_(-1.5, 1.5)
                norm.bias.uniform_(-0.5, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.rest(self, self.norm(x), x)


def behind_relu(net: Net, y: Tensor, _x: Tensor) -> Tensor:
    y = F.relu(y)
    return net.second(y)


def behind_relu_in_place(net: Net, y: Tensor, _x: Tensor) -> Tensor:
    return net.second(y.relu_())


def behind_a_sum(net: Net, y: Tensor, x: Tensor) -> Tensor:
    y = y + 0.5
    y = y.relu()
    return net.second(y)


def behind_a_residual_sum(net: Net, y: Tensor, x: Tensor) -> Tensor:
    y += net.other(net.second(F.relu(y.detach())))
    y = F.relu(y, inplace=True)
    return net.second(y)


GATED = [behind_relu, behind_relu_in_place, behind_a_sum]


def used_before(net: Net, y: Tensor, _x: Tensor) -> Tensor:
    both = y.sigmoid()
    y = F.relu(y)
    return net.second(y) + both


def used_after(net: Net, y: Tensor, _x: Tensor) -> Tensor:
    z = net.second(F.relu(y))
    return z + y.sigmoid()


class _Doubled(torch.autograd.Function):
    """An op that no torch function call shows."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return 2 * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def used_unseen(net: Net, y: Tensor, _x: Tensor) -> Tensor:
    twice = _Doubled.apply(y)
    y = F.relu(y)
    return net.second(y) + twice


def used_under_foreign_hooks(net: Net, y: Tensor, _x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        both = y.sigmoid()
    y = F.relu(y)
    return net.second(y) + both


def sum_used_twice(net: Net, y: Tensor, _x: Tensor) -> Tensor:
    y = y + 0.5
    twice = 2 * y
    y = F.relu(y)
    return net.second(y) + twice


def without_relu(net: Net, y: Tensor, _x: Tensor) -> Tensor:
    return net.second(y)


def far_from_its_relu(net: Net, y: Tensor, _x: Tensor) -> Tensor:
    for _ in range(3):
        y = y.view(y.shape)
    return net.second(y.relu())


UNGATED = [
    used_before,
    used_after,
    used_unseen,
    used_under_foreign_hooks,
    sum_used_twice,
    without_relu,
    far_from_its_relu,
]


def run(
    rest: Any, policy: Gating | None, *, layout: Any = torch.contiguous_format
) -> tuple[dict[str, Tensor], encke.tape.Tape | None]:
    """The gradients of a network's parameters and of its first convolution's output."""
    torch.manual_seed(0)
    net = Net(rest).to(memory_format=layout)
    x = torch.randn(8, 3, 12, 12).to(memory_format=layout)
    found: dict[str, Tensor] = {}
    net.first.register_forward_hook(
        lambda _m, _i, out: (
            out.register_hook(lambda g: found.__setitem__("dx", g.clone())) and None
        )
    )
    tape = None if policy is None else encke.attach(net, policy=policy)
    out = net(x)
    target = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    F.mse_loss(out, target).backward()
    found |= {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    return found, tape


def gated(tape: encke.tape.Tape) -> list[str]:
    return [str(r.site) for r in tape.records if "only where its ReLU passes" in r.why]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("rest", GATED, ids=lambda f: f.__name__)
def test_parameters_get_their_gradients_and_the_stream_misses_what_is_said(
    rest: Any, layout: Any
) -> None:
    exact, _ = run(rest, None, layout=layout)
    policy = Gating(FINE)
    found, tape = run(rest, policy, layout=layout)
    assert gated(tape) == ["norm/NativeBatchNorm.input"]
    for name in ("norm.weight", "norm.bias", "second.weight"):
        assert torch.allclose(found[name], exact[name], rtol=1e-4, atol=1e-6), name
    change = (found["dx"] - exact["dx"]).square().sum() / found["dx"].square().sum()
    said = [e.left_out for e in policy.effects if e.left_out]
    assert said
    assert float(change) == pytest.approx(said[0], rel=0.05)
    assert 0 < said[0] < 0.1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_what_goes_on_stays_at_right_angles_to_the_input_and_to_one(layout: Any) -> None:
    """Else weights that the norm makes free of scale would grow or shrink."""
    seen: dict[str, Tensor] = {}

    def rest(net: Net, y: Tensor, x: Tensor) -> Tensor:
        seen["x"], seen["share"] = x.detach(), (y > 0).float().mean((0, 2, 3))
        return behind_relu_in_place(net, y, x)

    found, tape = run(rest, Gating(FINE), layout=layout)
    assert gated(tape)
    dx, x = (t.transpose(0, 1).flatten(1).double() for t in (found["dx"], seen["x"]))
    x = x - x.mean(1, keepdim=True)
    angle = (dx * x).sum(1) / (dx.norm(dim=1) * x.norm(dim=1))
    many = seen["share"] > 0.3  # where hardly any pass, they are not made to bear all of it
    assert int(many.sum()) > 8
    assert angle[many].abs().max() < 1e-3
    assert (dx.sum(1) / (dx.norm(dim=1) * dx.shape[1] ** 0.5)).abs().max() < 1e-3


def test_a_norm_with_running_statistics_takes_nothing_out_and_is_kept_whole() -> None:
    torch.manual_seed(0)
    net = Net(behind_relu)
    net.norm.eval()
    tape = encke.attach(net, policy=Gating(FINE))
    net(torch.randn(8, 3, 12, 12)).sum().backward()
    assert gated(tape) == []


def test_a_norm_and_a_shortcut_behind_one_relu_are_both_gated() -> None:
    exact, _ = run(behind_a_residual_sum, None)
    found, tape = run(behind_a_residual_sum, Gating(FINE))
    assert gated(tape) == ["norm/NativeBatchNorm.input", "other/NativeBatchNorm.input"]
    for name in ("norm.weight", "norm.bias", "other.weight", "other.bias"):
        assert torch.allclose(found[name], exact[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("rest", UNGATED, ids=lambda f: f.__name__)
def test_where_anything_else_uses_the_output_nothing_is_left_out(rest: Any) -> None:
    exact, _ = run(rest, None)
    found, tape = run(rest, Gating(FINE))
    assert gated(tape) == []
    for name, gradient in exact.items():
        assert torch.allclose(found[name], gradient, rtol=1e-3, atol=1e-5), name


def test_an_input_that_another_op_keeps_too_is_kept_whole() -> None:
    def shared(net: Net, y: Tensor, x: Tensor) -> Tensor:
        slope = x.sigmoid()  # keeps its result
        y = y.relu_()
        return net.second(y) + slope + x * x  # keeps x, after the norm was packed

    exact, _ = run(shared, None)
    found, _ = run(shared, Gating(FINE))
    assert torch.allclose(found["second.weight"], exact["second.weight"], rtol=1e-4, atol=1e-6)
    change = (found["dx"] - exact["dx"]).square().sum() / exact["dx"].square().sum()
    assert float(change) < 0.05


def test_fewer_bytes_are_kept_within_the_bound() -> None:
    error = 0.1
    sizes = []
    for gate in (False, True):
        policy = Gating(error, gate=gate)
        deviations: list[Tensor] = []
        torch.manual_seed(0)
        net = Net(behind_relu)
        tape = encke.attach(net, policy=policy)
        tape.packed.append(lambda slot, t, seen=deviations: seen.append(slot.deviation(t)))
        net(torch.randn(8, 3, 12, 12)).sum().backward()
        assert max(float(d.abs().max()) for d in deviations) <= error
        sizes.append(tape.records.get(encke.tape.Site("norm", "NativeBatchNorm", "input")))
    assert sizes[1].stored < 0.7 * sizes[0].stored


def test_measured_and_predicted_errors_of_a_gated_norm_agree() -> None:
    policy = Gating(0.2, check=True)
    run(behind_relu, policy)
    (effect,) = [e for e in policy.effects if e.consumer.op == "NativeBatchNorm"]
    assert effect.measured is not None
    assert effect.measured[0] == pytest.approx(effect.predicted, rel=0.6)
    assert effect.blocked + effect.values == 8 * 16 * 12 * 12


def test_backward_may_run_twice() -> None:
    torch.manual_seed(0)
    check_two_backwards(Net(behind_a_residual_sum), torch.randn(8, 3, 12, 12))


def test_a_nan_passes() -> None:
    torch.manual_seed(0)
    net = Net(behind_relu)
    encke.attach(net, policy=Gating(0.1))
    x = torch.randn(8, 3, 12, 12)
    x[0, 0, 0, 0] = float("nan")
    net(x).sum().backward()
    assert net.first.weight.grad.isnan().any()


def test_nothing_waits_after_a_forward_pass_also_one_that_failed() -> None:
    def fails(net: Net, y: Tensor, _x: Tensor) -> Tensor:
        raise ValueError("on purpose")

    torch.manual_seed(0)
    net = Net(fails)
    tape = encke.attach(net, policy=Gating(0.1))
    with pytest.raises(ValueError, match="on purpose"):
        net(torch.randn(8, 3, 12, 12))
    assert not tape.waiting
    net.rest = behind_relu
    out = net(torch.randn(8, 3, 12, 12))
    assert not tape.waiting
    assert tape.ledger.waiting == 0
    out.sum().backward()


def test_the_controller_closes_gates_that_cost_more_than_they_spare() -> None:
    torch.manual_seed(0)
    net = Net(behind_relu)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    tape = encke.attach(net, optimizer)
    closed = set()
    for step in range(6):
        torch.manual_seed(step)
        net(torch.randn(8, 3, 12, 12)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        closed.add(bool(gated(tape)))
    gates = tape.policy.gates
    assert gates
    assert 0 <= gates.variance <= 0.25 * tape.policy.tolerance * 4
    # A loss that is all scale: what the norm takes out along its input is the whole gradient.
    assert closed == {True, False}
    again = encke.Adaptive()
    again.load_state_dict(tape.policy.state_dict())
    assert again.gates.state_dict() == gates.state_dict()
