"""What autograd guarantees without a tape, it guarantees with one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from nets import (
    IMAGES,
    LOSSLESS,
    LOSSY,
    POLICIES,
    equal,
    leaf,
    small_net,
)
from torch import Tensor, nn

import encke
from encke.tape import Policy, Site, Tape
from encke.tape.autograd.backward_passes import BackwardPasses
from encke.tape.storage.byte_count import ByteCount, SavedStorage
from encke.tape.storage.handle import Handle
from encke.tape.storage.sources import TensorSource


def _change_input(x: Tensor) -> Tensor:
    h = x.sin()
    y = F.gelu(h)
    h.mul_(2)
    return y


def _change_output(x: Tensor) -> Tensor:
    y = x.exp()
    y.add_(1)
    return y


def _change_through_a_view(x: Tensor) -> Tensor:
    h = x.sin()
    y = F.gelu(h)
    h[:3].zero_()
    return y


def _change_the_base_of_a_view(x: Tensor) -> Tensor:
    h = x.sin()
    y = F.gelu(h[8:])
    h.add_(1)
    return y


def _change_a_relu(x: Tensor) -> Tensor:
    y = x.relu()
    z = y * 2
    y.mul_(3)
    return z


def _change_a_pools_input(x: Tensor) -> Tensor:
    h = x.sin()
    y = F.max_pool2d(h.view(1, 1, 64, 48), 2)
    h.add_(1)
    return y


def _change_a_noise(x: Tensor) -> Tensor:
    mask = (torch.rand(64, 48) > 0.5).float()
    y = x * mask
    mask.zero_()
    return y


def _change_an_index(x: Tensor) -> Tensor:
    index = torch.randint(0, 64, (1000,))
    y = x.index_select(0, index)
    index.zero_()
    return y


def _change_under_no_grad(x: Tensor) -> Tensor:
    h = x.sin()
    y = F.gelu(h)
    with torch.no_grad():
        h.clamp_(min=0)
    return y


@POLICIES
@pytest.mark.parametrize(
    "change",
    [
        _change_input,
        _change_output,
        _change_through_a_view,
        _change_the_base_of_a_view,
        _change_a_relu,
        _change_a_pools_input,
        _change_a_noise,
        _change_an_index,
        _change_under_no_grad,
    ],
    ids=lambda f: f.__name__.removeprefix("_change_"),
)
def test_a_saved_tensor_changed_in_place_raises_as_in_plain_autograd(
    change: Callable[[Tensor], Tensor], policy: Policy
) -> None:
    plain = change(leaf(64, 48)).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        plain.backward()
    with Tape(policy):
        loss = change(leaf(64, 48)).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@POLICIES
def test_a_tensor_changed_after_forward_raises(policy: Policy) -> None:
    with Tape(policy):
        h = leaf(64, 48).sin()
        loss = F.gelu(h).sum()
    h.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_weight_changed_before_backward_raises() -> None:
    model = small_net()
    encke.attach(model, policy=LOSSY)
    loss = model(torch.randn(IMAGES)).sum()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@POLICIES
def test_a_retained_graph_gives_the_same_gradients_again(policy: Policy) -> None:
    model, x = small_net(), torch.randn(IMAGES)
    tape = encke.attach(model, policy=policy)
    loss = model(x).square().mean()
    parameters = list(model.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    second = torch.autograd.grad(loss, parameters, retain_graph=True)
    third = torch.autograd.grad(loss, parameters)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, third, strict=True))
    del loss
    assert tape.stored_bytes == 0
    if policy is LOSSLESS:
        tape.detach()
        plain = torch.autograd.grad(model(x).square().mean(), parameters)
        assert all(torch.equal(a, b) for a, b in zip(first, plain, strict=True))


def test_a_graph_that_was_used_up_raises_as_in_plain_autograd() -> None:
    model = small_net()
    encke.attach(model, policy=LOSSLESS)
    loss = model(torch.randn(IMAGES)).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_several_losses_of_one_forward_add_up() -> None:
    def run(model: nn.Module) -> list[Tensor | None]:
        model.zero_grad()
        output = model(x)
        output.square().mean().backward(retain_graph=True)
        output.abs().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    model, x = small_net(), torch.randn(IMAGES)
    plain = run(model)
    encke.attach(model, policy=LOSSLESS)
    assert equal(plain, run(model))


def test_part_of_a_graph_can_be_differentiated() -> None:
    model, x = small_net(), torch.randn(IMAGES)
    weight = model[8].weight
    (plain,) = torch.autograd.grad(model(x).sum(), weight)
    tape = encke.attach(model, policy=LOSSLESS)
    output = model(x).sum()
    (kept,) = torch.autograd.grad(output, weight, retain_graph=True)
    assert torch.equal(plain, kept)
    assert tape.stored_bytes > 0
    (later,) = torch.autograd.grad(output, model[0].weight)
    assert later.isfinite().all()
    del output
    assert tape.stored_bytes == 0


def test_two_forwards_may_wait_for_their_backwards() -> None:
    def run(model: nn.Module) -> list[Tensor | None]:
        model.zero_grad()
        one, other = model(x).sum(), model(y).square().sum()
        other.backward()
        one.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    model, x, y = small_net(), torch.randn(IMAGES), torch.randn(IMAGES)
    plain = run(model)
    encke.attach(model, policy=LOSSLESS)
    assert equal(plain, run(model))


def test_gradients_of_gradients_are_those_of_plain_autograd() -> None:
    def penalty(model: nn.Module) -> list[Tensor]:
        inputs = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        return list(
            torch.autograd.grad(g.square().sum(), model.parameters(), allow_unused=True)
        )

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 48), nn.Softplus(), nn.Linear(48, 4)
    )
    x = torch.randn(64, 64)
    plain = penalty(model)
    encke.attach(model, policy=LOSSLESS)
    assert equal(plain, penalty(model))


class Wrong(TensorSource):
    how = "wrong"

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def get(self) -> Tensor:
        return self.value


def test_a_source_of_another_shape_or_device_is_refused() -> None:
    t = torch.zeros(4, 6)
    for value in (torch.zeros(4, 1), torch.zeros(6, 4), torch.zeros(4, 6, device="meta")):
        handle = Handle(
            Wrong(value),
            Site("m", "Op", "self"),
            t,
            SavedStorage(ByteCount(), t),
            BackwardPasses(),
        )
        with pytest.raises(encke.EnckeError, match=r"m/Op\.self: saved \[4, 6\]"):
            handle.get()


def test_a_source_of_another_type_comes_back_as_what_was_saved() -> None:
    t = torch.zeros(4, 6, dtype=torch.bfloat16).t()
    value = torch.ones(6, 4, dtype=torch.float32)
    handle = Handle(
        Wrong(value), Site("m", "Op", "self"), t, SavedStorage(ByteCount(), t), BackwardPasses()
    )
    found = handle.get()
    assert (found.dtype, found.shape, found.stride()) == (t.dtype, t.shape, t.stride())
