"""The order of products in backward graphs: weights' gradients first, with the same results."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
import torch
from compiling import compiled, transformer
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import encke
from encke.tape.compiled import internals, order
from encke.tape.compiled.graphs import attached


@pytest.fixture(autouse=True)
def no_other_tapes() -> None:
    for tape in list(attached):
        tape.detach()


def traced(
    *layers: nn.Module, x: Tensor | None = None, x_too: bool = True
) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    """Forward and backward of layers as one graph, and what to run it on.

    x_too  whether the input has a gradient as well
    """
    net = nn.Sequential(*layers)
    names = [name for name, _ in net.named_parameters()]

    def gradients(x: Tensor, *given: Tensor) -> list[Tensor]:
        weights = [t.detach().requires_grad_() for t in given]
        x = x.detach().requires_grad_(x_too)
        y = torch.func.functional_call(net, dict(zip(names, weights, strict=True)), x)
        return list(torch.autograd.grad(y.square().sum(), [x, *weights] if x_too else weights))

    inputs = (torch.randn(5, 6) if x is None else x, *(p.detach() for p in net.parameters()))
    return make_fx(gradients)(*inputs), inputs


def test_a_weights_gradient_comes_before_what_flows_on_and_nothing_else_changes() -> None:
    torch.manual_seed(0)
    gm, inputs = traced(nn.Tanh(), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4, bias=False))
    plain = gm(*inputs)
    waits = order.weights_first(gm.graph)
    gm.graph.lint()
    gm.recompile()
    assert all(torch.equal(a, b) for a, b in itertools.zip_longest(plain, gm(*inputs)))
    assert len(waits) == 2  # one for each layer
    for later, first in waits.items():
        assert first < later
        assert tuple(first.meta["val"].shape) in {(8, 6), (6, 8), (4, 8), (8, 4)}


def test_the_product_that_flows_on_waits_for_no_product_that_needs_it() -> None:
    torch.manual_seed(0)
    gm, inputs = traced(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    plain = gm(*inputs)
    waits = order.weights_first(gm.graph)
    for later, first in waits.items():
        assert later not in order.needed_by(first)
    gm.graph.lint()
    internals.keep_order(gm, waits)  # as an op of its own, that runs outside Inductor too
    gm.graph.lint()
    assert all(torch.equal(a, b) for a, b in itertools.zip_longest(plain, gm(*inputs)))


def test_a_graph_without_products_of_weights_stays_as_it_is() -> None:
    gm = make_fx(lambda x: (x @ x).tanh() @ x)(torch.randn(3, 3))
    before = [n.name for n in gm.graph.nodes]
    assert order.weights_first(gm.graph) == {}
    assert [n.name for n in gm.graph.nodes] == before


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3, padding=1),
        nn.Conv2d(4, 6, 3, stride=2, bias=False),
        nn.Conv2d(4, 6, (1, 5), stride=(3, 2), padding=(0, 2), dilation=(1, 2)),
        nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=4),
    ],
    ids=str,
)
def test_a_convolutions_backward_in_two_ops_gives_the_same_bits(layer: nn.Conv2d) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 11, 12)
    gm, inputs = traced(nn.Tanh(), layer, x=x)
    plain = gm(*inputs)
    order.split_convolutions(gm.graph)
    gm.graph.lint()
    gm.recompile()
    targets = [n.target for n in gm.graph.nodes]
    onward = len(targets) - 1 - targets[::-1].index(torch.ops.aten.convolution.default)
    assert targets.index(torch.ops.aten.convolution_backward.default) < onward
    assert all(torch.equal(a, b) for a, b in itertools.zip_longest(plain, gm(*inputs)))


@pytest.mark.parametrize(
    "layers", [(nn.ConvTranspose2d(4, 4, 3),), (nn.Conv2d(4, 4, 3), nn.Flatten())], ids=str
)
def test_what_flows_nowhere_or_is_transposed_is_not_split(
    layers: tuple[nn.Module, ...],
) -> None:
    gm, _ = traced(*layers, x=torch.randn(2, 4, 6, 6), x_too=len(layers) == 1)
    before = [n.name for n in gm.graph.nodes]
    order.split_convolutions(gm.graph)
    assert {n.name for n in gm.graph.nodes} <= set(before)


def test_values_are_computed_right_before_they_are_used() -> None:
    def program(tangents_1: Tensor, x: Tensor, y: Tensor) -> Tensor:
        early = torch.exp(torch.sin(x))
        gradient = (tangents_1 * y).relu()
        return (gradient + gradient.cumsum(0)) * early

    gm = make_fx(program)(*torch.randn(3, 4, 4))
    _as_backward(gm.graph)
    order.sink(gm.graph)
    gm.graph.lint()
    names = [internals.op_name(n.target) for n in gm.graph.nodes if n.op == "call_function"]
    assert names == ["mul", "relu", "cumsum", "add", "sin", "exp", "mul"]


def test_what_is_kept_waits_for_the_gradient_that_it_meets() -> None:
    def program(tangents_1: Tensor, kept: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        met = torch.where(other > 0, tangents_1, 0.0)
        scaled = met * other
        return scaled * torch.sin(kept), met + other

    gm = make_fx(program)(*torch.randn(3, 4, 4))
    tangents, kept, other = gm.graph.find_nodes(op="placeholder")
    _as_backward(gm.graph)
    meetings = order.Meetings(gm.graph, [kept, other])
    (where,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.where.self)
    assert meetings.gradient(kept) is where
    assert meetings.gradient(other) is None  # met where it comes in
    assert meetings.gradient(tangents) is None


def test_values_that_make_one_input_together_are_given_again_for_their_own_use() -> None:
    def program(
        tangents_1: Tensor, one: Tensor, two: Tensor, small: Tensor, alone: Tensor
    ) -> tuple[Tensor, ...]:
        weight = tangents_1 @ (one.sin() + two.sin() + small)  # a layer's input, made again
        onward = tangents_1 @ tangents_1
        last = onward @ alone.sin()
        return weight, onward * one, onward * two, onward * small, last * alone

    gm = make_fx(program)(*torch.randn(3, 8, 8), torch.randn(8), torch.randn(8, 8))
    _, *kept = gm.graph.find_nodes(op="placeholder")
    _as_backward(gm.graph)
    meetings = order.Meetings(gm.graph, kept)
    for node in kept:
        groups = meetings.uses(node)
        assert sorted(itertools.chain(*groups)) == sorted(node.users)
        assert len(groups) == (2 if node in kept[:2] else 1)


def _as_backward(graph: fx.Graph) -> None:
    """Name a program's first input as torch names gradients that come in."""
    first = next(iter(graph.find_nodes(op="placeholder")))
    first.target = first.name = "tangents_1"


def test_gradients_of_a_tied_weight_add_up() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(50, 64)
            self.mix = nn.Linear(64, 64)

        def forward(self, tokens: Tensor) -> Tensor:
            return nn.functional.gelu(self.mix(self.words(tokens))) @ self.words.weight.T

    torch.manual_seed(0)
    model, tokens = Tied(), torch.randint(50, (4, 32))
    model(tokens).square().mean().backward()
    plain = [p.grad for p in model.parameters()]
    model.zero_grad()
    tape = encke.attach(model, policy=encke.Fixed(encke.Lossless()))
    compiled(model)(tokens).square().mean().backward()
    assert tape.step == 1
    tape.detach()
    for mine, other in zip(model.parameters(), plain, strict=True):
        assert mine.grad is not None
        assert other is not None
        torch.testing.assert_close(mine.grad, other)


@pytest.mark.slow
def test_inductor_keeps_the_order_and_holds_no_memory_to_use_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    assert config.allow_buffer_reuse
    model, tokens = transformer(), torch.randint(50, (8, 64))
    tape = encke.attach(model, policy=encke.Fixed(encke.RangeRelative(0.05)))
    run: Any = torch.compile(model, fullgraph=True)

    def ends() -> list[bool]:
        """Of each product in the code of backward: whether it has no weight for a factor."""
        torch.compiler.reset()
        _, codes = run_and_get_code(lambda: run(tokens).square().mean().backward())
        lines = next(c for c in codes if "tape_give" in c).splitlines()
        return ["primals" not in line for line in lines if "extern_kernels.mm(" in line]

    assert ends() == [True, False] * 9
    assert not config.allow_buffer_reuse
    monkeypatch.setattr(internals, "keep_order", lambda *_: None)
    assert ends() != [True, False] * 9
    tape.detach()
    assert config.allow_buffer_reuse


@pytest.mark.slow
def test_memory_is_held_again_once_the_last_model_with_a_tape_is_gone() -> None:
    from torch._inductor import config

    def train(model: nn.Module) -> None:
        torch.compile(model)(torch.randn(16, 64)).sum().backward()

    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    encke.attach(model)
    train(model)
    assert not config.allow_buffer_reuse
    del model
    torch.compiler.reset()
    gc.collect()
    train(nn.Sequential(nn.Linear(64, 64), nn.Tanh()))
    assert config.allow_buffer_reuse
