"""An embedding that shares its weight with the head: the same sum, in one tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from allocations import LargestTensor
from torch import Tensor, nn

from encke.head.lazy import LazyHead

pytestmark = pytest.mark.usefixtures("small_heads")
IDS = torch.randint(0, 60, (5, 9), generator=torch.Generator().manual_seed(0))


class Tied(nn.Module):
    def __init__(self, *, padding: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(60, 6, padding_idx=padding)
        self.head = nn.Linear(6, 60, bias=False)
        self.head.weight = self.embedding.weight
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.head(torch.tanh(self.embedding(ids)))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.parametrize("padding", [None, 3, -1])
@pytest.mark.parametrize("again", [False, True])
def test_the_sum_of_both_gradients(padding: int | None, again: bool) -> None:
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        net, seen = Tied(padding=padding), []
        net.head.weight.register_hook(lambda g, seen=seen: seen.append(g.clone()))
        net.head.weight.register_post_accumulate_grad_hook(
            lambda p, seen=seen: seen.append(p.grad.clone())
        )
        for _ in range(1 + again):
            with mode:
                loss = net(IDS)
            loss.backward()
        (gradient,) = torch.autograd.grad(net(IDS), [net.head.weight])
        found.append([net.head.weight.grad, gradient, *seen])
    torch.testing.assert_close(*found)


def test_the_embedding_alone_gives_a_dense_gradient() -> None:
    net = Tied()
    with LazyHead():
        net.embedding(IDS).square().sum().backward()
    assert net.embedding.weight.grad.layout == torch.strided
    plain = Tied()
    plain.embedding(IDS).square().sum().backward()
    torch.testing.assert_close(net.embedding.weight.grad, plain.embedding.weight.grad)


def test_two_backward_passes_of_one_step() -> None:
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        net = Tied()
        with mode:
            loss, other = net(IDS), net.embedding(IDS).square().sum()
        loss.backward()
        other.backward()
        found.append(net.head.weight.grad)
    assert found[0].layout == torch.strided
    torch.testing.assert_close(*found)


def test_second_derivatives() -> None:
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        net = Tied()
        with mode:
            loss = net(IDS)
        (first,) = torch.autograd.grad(loss, [net.head.weight], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [net.head.weight]))
    torch.testing.assert_close(*found)


def test_options_that_change_the_weight_or_its_gradient_are_left_to_torch() -> None:
    options: list[dict[str, Any]] = [
        {"max_norm": 0.5},
        {"scale_grad_by_freq": True},
        {"sparse": True},
    ]
    for each in options:
        weight = nn.Parameter(torch.randn(60, 6))
        with LazyHead():
            result = F.embedding(IDS, weight, **each)
        assert result.grad_fn.name() == "EmbeddingBackward0"


def test_the_gradient_of_the_weight_exists_once() -> None:
    class Count(LargestTensor):
        """Counts dense tensors of the weight's shape that are made."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            result = func(*args, **(kwargs or {}))
            if (
                isinstance(result, Tensor)
                and result.layout == torch.strided
                and result.shape == (60, 6)
                and not func.is_view
                and func._schema.name[-1] != "_"
            ):
                made.append(func)
            return result

    counts = []
    for mode in (LazyHead(), torch.enable_grad()):
        net, made = Tied(), []
        with mode:
            loss = net(IDS)
        with Count():
            loss.backward()
        counts.append(len(made))
    assert counts[0] == 1
    assert counts[1] > 1
