"""Backward in the memory of what was decoded: the same gradients, fewer tensors at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from watching import Gating, Watching

import encke
from encke.tape.autograd import backward_kernels
from encke.tape.autograd.backward_kernels import can_lend, lend, samples_at_a_time


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions of these tests are taken apart, as large ones are."""
    monkeypatch.setattr(backward_kernels, "_SLICE", 4096)
    monkeypatch.setattr(backward_kernels, "_LARGE", 4096)
    assert can_lend()


def gradients(
    node_input: Tensor, parameters: list[Tensor], output: Tensor, way: Tensor
) -> list[Tensor]:
    found = torch.autograd.grad((output * way).sum(), [node_input, *parameters])
    return list(found)


CONVOLUTIONS = {
    "plain": nn.Conv2d(4, 8, 3, padding=1),
    "stride and dilation": nn.Conv2d(4, 8, 3, stride=2, dilation=2),
    "groups": nn.Conv2d(4, 8, 3, groups=2, bias=False),
    "one dimension": nn.Conv1d(4, 8, 5),
    "three dimensions": nn.Conv3d(4, 2, 3),
    "transposed": nn.ConvTranspose2d(4, 8, 3, stride=2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_of_a_lent_input_gives_the_gradients_of_the_whole(name: str) -> None:
    layer = CONVOLUTIONS[name]
    torch.manual_seed(0)
    sizes = {"one dimension": (500,), "three dimensions": (9, 9, 9)}.get(name, (20, 20))
    x = torch.randn(7, 4, *sizes, requires_grad=True)
    bias = [] if layer.bias is None else [layer.bias]
    way = torch.randn_like(layer(x))
    plain = gradients(x, [layer.weight, *bias], layer(x), way)
    assert 0 < samples_at_a_time(x, way, layer.weight) < 7

    def lent() -> list[Tensor]:
        def unpack(t: Tensor) -> Tensor:
            if t.shape != x.shape:
                return t
            copy = t.clone()
            lend(copy)
            return copy

        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), unpack):
            out = layer(x)
        return gradients(x, [layer.weight, *bias], out, way)

    for a, b in zip(plain, lent(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(5, 6, 7, 9), (5, 6), (4, 6, 33), (3, 6, 3, 4, 5)])
def test_a_batch_norm_of_a_lent_input_gives_its_own_gradients(
    affine: bool, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    x = (3 * torch.randn(shape) + 2).requires_grad_()
    weight = torch.randn(6).requires_grad_() if affine else None
    bias = torch.randn(6).requires_grad_() if affine else None
    parameters = [p for p in (weight, bias) if p is not None]
    way = torch.randn(shape)

    def run(unpack: object) -> list[Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), unpack):  # type: ignore[arg-type]
            out = F.batch_norm(x, None, None, weight, bias, training=True)
        return gradients(x, parameters, out, way)

    def unpack(t: Tensor) -> Tensor:
        copy = t.clone()
        if t.shape == x.shape:
            lend(copy)
        return copy

    for a, b in zip(run(lambda t: t), run(unpack), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3),
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_lending_changes_nothing_but_rounding(
    monkeypatch: pytest.MonkeyPatch, channels_last: bool
) -> None:
    x = torch.randn(8, 3, 20, 20)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)

    def gradients_of(policy: Watching) -> list[Tensor]:
        model = net()
        encke.attach(model, policy=policy)
        model(x).square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    for policy in (lambda: Gating(0.05), lambda: Watching(encke.RmsRelative(0.05))):
        lent = gradients_of(policy())
        with monkeypatch.context() as without:
            without.setattr("encke.tape.storage.handle.can_lend", lambda: False)
            plain = gradients_of(policy())
        for a, b in zip(lent, plain, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))


def test_what_is_kept_exact_is_never_written_over() -> None:
    model = net()
    encke.attach(model, policy=encke.Fixed(encke.Lossless()))
    x = torch.randn(8, 3, 20, 20, requires_grad=True)
    before = x.detach().clone()
    loss = model(x).square().sum()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    loss.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(first, model.parameters(), strict=True))
    assert torch.equal(x, before)


def test_a_graph_that_is_kept_gives_the_same_gradients_again() -> None:
    model = net()
    encke.attach(model, policy=Watching(encke.RmsRelative(0.05)))
    loss = model(torch.randn(8, 3, 20, 20)).square().sum()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    loss.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(first, model.parameters(), strict=True))


def test_second_derivatives_are_those_without_lending(monkeypatch: pytest.MonkeyPatch) -> None:
    def penalty() -> list[Tensor]:
        model = net()
        encke.attach(model, policy=Watching(encke.RmsRelative(0.01)))
        torch.manual_seed(1)
        x = torch.randn(8, 3, 20, 20, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    lent = penalty()
    monkeypatch.setattr("encke.tape.storage.handle.can_lend", lambda: False)
    for a, b in zip(lent, penalty(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()) + 1e-6)


def test_a_model_without_a_tape_gets_torchs_own_bits() -> None:
    x = torch.randn(8, 3, 20, 20)
    net()(x)  # the kernels are in place by now
    original = torch.ops.aten.threshold_backward(x, x, 0)
    assert torch.equal(original, torch.where(x > 0, x, torch.zeros(())))
    assert not backward_kernels._lent


def test_nothing_stays_noted_after_a_step() -> None:
    model = net()
    encke.attach(model, policy=Gating(0.05))
    model(torch.randn(8, 3, 20, 20)).square().sum().backward()
    assert not backward_kernels._lent
