"""`encke.linear_cross_entropy` gives what F.linear and F.cross_entropy give."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import encke

#: So small that 300 classes take several blocks, and 40 rows do too.
BLOCK = 128 * 7 * 8


def stock(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    class_weight: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    **options: Any,
) -> Tensor:
    logits = F.linear(hidden, weight, bias) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    flat = F.cross_entropy(logits.flatten(0, -2), target.flatten(), class_weight, **options)
    return flat.view(target.shape) if options.get("reduction") == "none" else flat


def inputs(
    lead: tuple[int, ...] = (5, 8),
    classes: int = 300,
    features: int = 6,
    dtype: torch.dtype = torch.float64,
    ignored: float = 0.2,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(*lead, features, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(classes, features, generator=generator).to(dtype).requires_grad_()
    bias = torch.randn(classes, generator=generator).to(dtype).requires_grad_()
    target = torch.randint(0, classes, lead, generator=generator)
    target[torch.rand(lead, generator=generator) < ignored] = -100
    return hidden, weight, target, bias


def both(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, **options: Any
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Loss and gradients, as Encke and as torch compute them."""
    found = []
    for function, own in ((encke.linear_cross_entropy, {"block_bytes": BLOCK}), (stock, {})):
        needed = [t for t in (hidden, weight, bias) if t is not None and t.requires_grad]
        loss = function(hidden, weight, target, bias, **options, **own)
        upstream = torch.linspace(-1, 2, loss.numel(), dtype=loss.dtype).view(loss.shape)
        upstream = upstream if loss.dim() else torch.tensor(-0.7, dtype=loss.dtype)
        found.append([loss.detach(), *torch.autograd.grad(loss, needed, upstream)])
    return found[0], found[1]


def check(pair: tuple[list[Any], list[Any]], **tolerance: float) -> None:
    for ours, theirs in zip(*pair, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("capped", [None, 3.0])
@pytest.mark.parametrize("ignored", [0.0, 0.2, 0.8, 1.0])
def test_every_combination_of_options_equals_the_composition(
    reduction: str, smoothing: float, weighted: bool, capped: float | None, ignored: float
) -> None:
    hidden, weight, target, bias = inputs(ignored=ignored)
    class_weight = torch.rand(300, dtype=torch.float64) if weighted else None
    if class_weight is not None:
        class_weight[::7] = 0
    for given, scale in itertools.product((None, bias), (1.0, 0.3)):
        options = dict(
            reduction=reduction,
            label_smoothing=smoothing,
            class_weight=class_weight,
            softcap=capped,
            scale=scale,
        )
        check(both(hidden, weight, target, given, **options), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("lead", [(), (1,), (40,), (2, 3, 4)])
@pytest.mark.parametrize("classes", [1, 2, 127, 128, 129, 300])
def test_any_shape(lead: tuple[int, ...], classes: int) -> None:
    hidden, weight, target, bias = inputs(lead, classes, ignored=0)
    if not lead:
        loss = encke.linear_cross_entropy(hidden, weight, target, bias)
        expected = F.cross_entropy(F.linear(hidden, weight, bias), target)
        torch.testing.assert_close(loss, expected)
        return
    check(both(hidden, weight, target, bias), rtol=1e-9, atol=1e-12)


def test_no_rows_at_all() -> None:
    hidden, weight, target, bias = inputs((0,))
    for reduction in ("sum", "none", "mean"):
        check(both(hidden, weight, target, bias, reduction=reduction))


def test_another_ignore_index() -> None:
    hidden, weight, target, bias = inputs()
    target[target == -100] = 3
    check(both(hidden, weight, target, bias, ignore_index=3), rtol=1e-9, atol=1e-12)


def test_a_target_out_of_range_is_named() -> None:
    hidden, weight, target, bias = inputs()
    for wrong in (300, -1):
        target[0, 0] = wrong
        with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
            encke.linear_cross_entropy(hidden, weight, target, bias)


def test_classes_that_the_bias_forbids() -> None:
    hidden, weight, target, bias = inputs(ignored=0)
    forbidden = bias.detach().clone()
    forbidden[:200] = -torch.inf
    check(both(hidden, weight, target % 100 + 200, forbidden), rtol=1e-9, atol=1e-12)


def test_large_logits_do_not_overflow() -> None:
    hidden, weight, target, bias = inputs(dtype=torch.float32)
    check(both(hidden, weight, target, bias, scale=1e4), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)],
)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_other_dtypes(dtype: torch.dtype, tolerance: float, reduction: str) -> None:
    hidden, weight, target, bias = inputs(dtype=dtype)
    ours, theirs = both(hidden, weight, target, bias, reduction=reduction)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype == dtype
        assert (one - other).double().norm() <= tolerance * other.double().norm()


def test_half_precision_is_about_as_near_to_the_truth_as_the_composition() -> None:
    tensors = inputs((64,), 3000, dtype=torch.bfloat16)
    ours, theirs = both(*tensors)
    exact, _ = both(
        *(t.double().detach().requires_grad_() if t.is_floating_point() else t for t in tensors)
    )
    for one, other, true in zip(ours, theirs, exact, strict=True):
        assert (one.double() - true).norm() <= 1.5 * (other.double() - true).norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    hidden, weight, target, bias = inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        ours, theirs = both(hidden, weight, target, bias)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert (one - other).norm() <= 1e-2 * other.norm()
    assert abs(ours[0] - theirs[0]) < 1e-5  # both products are rounded, and the loss is not


def test_numeric_gradients() -> None:
    hidden, weight, target, bias = inputs((3,), 9, 2)
    target[:] = torch.tensor([1, -100, 8])
    for options in ({}, {"label_smoothing": 0.2, "softcap": 2.0}):
        assert torch.autograd.gradcheck(
            lambda h, w, b, options=options: encke.linear_cross_entropy(
                h, w, target, b, **options
            ),
            (hidden, weight, bias),
        )


@pytest.mark.parametrize("frozen", [{0}, {1}, {2}, {0, 2}, {1, 2}])
def test_what_is_frozen_gets_no_gradient(frozen: set[int]) -> None:
    hidden, weight, target, bias = inputs()
    for number, t in enumerate((hidden, weight, bias)):
        t.requires_grad_(number not in frozen)
    check(both(hidden, weight, target, bias), rtol=1e-9, atol=1e-12)
    encke.linear_cross_entropy(hidden, weight, target, bias).backward()
    for number, t in enumerate((hidden, weight, bias)):
        assert (t.grad is None) == (number in frozen)


def test_gradients_are_added_to_those_that_are_there() -> None:
    hidden, weight, target, bias = inputs()
    encke.linear_cross_entropy(hidden, weight, target, bias).backward()
    first = weight.grad.clone()
    encke.linear_cross_entropy(hidden, weight, target, bias).backward()
    torch.testing.assert_close(weight.grad, 2 * first)


def test_the_gradient_of_the_weight_is_handed_over_without_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    empty_like = torch.empty_like

    def noting(t: Tensor, **options: Any) -> Tensor:
        made.append(empty_like(t, **options))
        address.append(made[-1].data_ptr())
        return made.pop()

    address: list[int] = []
    hidden, weight, target, bias = inputs()
    loss = encke.linear_cross_entropy(hidden, weight, target, bias)
    monkeypatch.setattr(torch, "empty_like", noting)
    loss.backward()
    assert weight.grad.data_ptr() in address


def test_hooks_of_the_weight_see_the_gradient() -> None:
    hidden, weight, target, bias = inputs()
    weight = nn.Parameter(weight.detach())
    seen: list[Tensor] = []
    weight.register_hook(lambda gradient: 2 * gradient)
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    encke.linear_cross_entropy(hidden, weight, target, bias).backward()
    plain = weight.detach().clone().requires_grad_()
    stock(hidden, plain, target, bias).backward()
    torch.testing.assert_close(seen, [2 * plain.grad])


def test_tied_weights() -> None:
    found = []
    ids = torch.randint(0, 300, (5, 8), generator=torch.Generator().manual_seed(1))
    for function in (encke.linear_cross_entropy, stock):
        _, weight, target, bias = inputs()
        function(torch.tanh(F.embedding(ids, weight)), weight, target, bias).backward()
        found.append(weight.grad)
    torch.testing.assert_close(*found)


def test_second_derivatives_equal_those_of_the_composition() -> None:
    found = []
    for function in (encke.linear_cross_entropy, stock):
        hidden, weight, target, bias = inputs()
        loss = function(hidden, weight, target, bias, label_smoothing=0.1, softcap=2.0)
        (first,) = torch.autograd.grad(loss, [hidden], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [hidden, weight, bias]))
    torch.testing.assert_close(*found)


def test_a_second_backward_of_a_freed_graph_is_refused_by_autograd() -> None:
    loss = encke.linear_cross_entropy(*inputs())
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_a_weight_that_was_changed_since_is_noticed() -> None:
    hidden, weight, target, bias = inputs()
    loss = encke.linear_cross_entropy(hidden, weight, target, bias)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reduction": "men"}, "did you mean mean"),
        ({"label_smoothing": 2.0}, "from 0 to 1"),
        ({"softcap": 0.0}, "must not be 0"),
        ({"block_bytes": 0}, "must be positive"),
        ({"class_weight": torch.ones(3)}, "class_weight has shape"),
        ({"class_weight": torch.ones(300, requires_grad=True)}, "requires a gradient"),
        ({"bias": torch.ones(3)}, "bias has shape"),
        ({"target": torch.zeros(5, 8)}, "use F.cross_entropy"),
        ({"target": torch.zeros(4, dtype=torch.long)}, "one class index for each"),
        ({"weight": torch.zeros(300, 7)}, "features"),
        ({"weight": torch.zeros(300, 6)}, "convert them to one"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(
    change: dict[str, Any], message: str
) -> None:
    names = ("hidden", "weight", "target", "bias")
    given = dict(zip(names, inputs(), strict=True)) | change
    with pytest.raises(encke.EnckeError, match=message):
        encke.linear_cross_entropy(**given)
