"""Cross-entropy of logits that are there: one more tensor of their size, the same gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from encke.head.lazy import LazyHead

pytestmark = pytest.mark.usefixtures("small_heads")


def both(logits: Tensor, target: Tensor, **options: Any) -> list[tuple[Tensor, Tensor]]:
    """Loss and gradient of the logits, here and in torch."""
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        leaf = logits.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        with mode:
            loss = F.cross_entropy(leaf * 1, target, **options)
        upstream = torch.linspace(0.5, 1, loss.numel(), dtype=loss.dtype).view(loss.shape)
        (gradient,) = torch.autograd.grad(loss, leaf, upstream)
        found.append((loss.detach(), gradient))
        name = type(loss.grad_fn).__name__
        assert ("Blockwise" in name or "View" in name) == isinstance(mode, LazyHead)
    return found


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(211, 97, generator=generator)
    target = torch.randint(0, 97, (211,), generator=generator)
    target[::5] = -100
    return logits.to(dtype), target


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bit_for_bit_without_smoothing_and_weights(reduction: str, dtype: torch.dtype) -> None:
    logits, target = inputs(dtype)
    ours, theirs = both(logits, target, reduction=reduction)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_combination(reduction: str, smoothing: float, weighted: bool) -> None:
    logits, target = inputs(torch.float64)
    weight = torch.linspace(0, 2, 97).double() if weighted else None
    options = {"reduction": reduction, "label_smoothing": smoothing, "weight": weight}
    torch.testing.assert_close(*both(logits, target, **options), rtol=1e-10, atol=1e-13)


def test_float32_within_a_millionth() -> None:
    logits, target = inputs()
    torch.testing.assert_close(*both(logits, target, label_smoothing=0.1), rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    logits, target = inputs(dtype)
    (loss, gradient), (expected, expected_gradient) = both(logits, target)
    assert loss.dtype == gradient.dtype == dtype
    torch.testing.assert_close(loss, expected)
    assert (gradient - expected_gradient).double().norm() < 1e-2 * gradient.double().norm()


def test_autocast() -> None:
    logits, target = inputs(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = both(logits, target)
    assert ours[0].dtype == theirs[0].dtype == torch.float32
    torch.testing.assert_close(ours, theirs)


def test_more_dimensions_with_the_classes_last_in_memory() -> None:
    logits, target = inputs(torch.float64)
    logits, target = logits[:210].view(7, 30, 97).transpose(1, 2), target[:210].view(7, 30)
    torch.testing.assert_close(*both(logits, target))


def test_all_ignored() -> None:
    logits, target = inputs(torch.float64)
    torch.testing.assert_close(*both(logits, torch.full_like(target, -100)), equal_nan=True)


def test_second_derivatives() -> None:
    found = []
    logits, target = inputs(torch.float64)
    for mode in (LazyHead(), torch.enable_grad()):
        leaf = logits.clone().requires_grad_()
        with mode:
            loss = F.cross_entropy(leaf * 1, target, label_smoothing=0.1)
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), leaf)[0])
    torch.testing.assert_close(*found)


def test_a_target_out_of_range_is_named() -> None:
    logits, target = inputs()
    target[3] = 97
    with LazyHead(), pytest.raises(IndexError, match="Target 97 is out of bounds"):
        F.cross_entropy(logits.requires_grad_() * 1, target)


def test_logits_in_another_order_and_probabilities_are_left_to_torch() -> None:
    logits = torch.randn(4, 9, 5, requires_grad=True)
    with LazyHead():
        loss = F.cross_entropy(logits * 1, torch.zeros(4, 5, dtype=torch.long))
        assert "Blockwise" not in type(loss.grad_fn).__name__
        loss = F.cross_entropy(logits * 1, torch.softmax(logits.detach(), 1))
        assert "Blockwise" not in type(loss.grad_fn).__name__
