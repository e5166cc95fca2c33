"""Factors and preconditioned gradients are those of a dense computation in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kfac_oracle import dense_factors, gradient_matrix, precondition, rows_of
from torch import Tensor, nn

from encke.wire.kfac import KFAC

DAMPING = 0.03
METHODS = ("eigen", "inverse")


def curvature(model: nn.Module, **options: Any) -> KFAC:
    settings = {
        "fisher": "empirical",
        "damping": DAMPING,
        "kl_clip": None,
        "uncovered": "raise",
    }
    return KFAC(model, **(settings | options))


def convolution(kind: type[nn.Module], dimensions: int, **options: Any) -> Any:
    def make() -> tuple[nn.Module, Tensor]:
        sizes = (7, 6, 5)[:dimensions]
        layer = kind(4, 6, (3, 2, 3)[:dimensions], **options)
        return layer, torch.randn(2, 4, *sizes)

    return make


CONVOLUTIONS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "1d": convolution(nn.Conv1d, 1),
    "1d same, reflect": convolution(nn.Conv1d, 1, padding="same", padding_mode="reflect"),
    "2d": convolution(nn.Conv2d, 2, padding=1),
    "2d without bias": convolution(nn.Conv2d, 2, bias=False),
    "2d stride": convolution(nn.Conv2d, 2, stride=(2, 1), padding=(1, 0)),
    "2d dilation": convolution(nn.Conv2d, 2, dilation=(2, 3), padding=2),
    "2d same, even kernel, dilated": convolution(nn.Conv2d, 2, padding="same", dilation=2),
    "2d valid": convolution(nn.Conv2d, 2, padding="valid"),
    "2d circular": convolution(nn.Conv2d, 2, padding=2, padding_mode="circular"),
    "2d same, circular": convolution(nn.Conv2d, 2, padding="same", padding_mode="circular"),
    "2d replicate": convolution(nn.Conv2d, 2, padding=(2, 1), padding_mode="replicate"),
    "2d reflect": convolution(nn.Conv2d, 2, padding=(2, 1), padding_mode="reflect"),
    "2d groups": convolution(nn.Conv2d, 2, groups=2, padding=1),
    "3d": convolution(nn.Conv3d, 3, padding=1, stride=2),
    "3d circular, groups": convolution(
        nn.Conv3d, 3, padding=1, stride=2, groups=2, padding_mode="circular"
    ),
}


def loss_of(y: Tensor) -> Tensor:
    """A mean over examples of something that treats no two values alike."""
    weights = torch.linspace(0.5, 1.5, y[0].numel(), dtype=y.dtype).view(y[0].shape)
    return (y.sin() * weights).flatten(1).sum(1).mean()


def output_gradient(y: Tensor) -> Tensor:
    """Of the loss summed over examples, away from the graph that K-FAC watches."""
    y = y.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(y) * len(y), y)
    return gradient


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_preconditioned_like_the_dense_oracle(name: str, method: str) -> None:
    torch.manual_seed(0)
    layer, x = CONVOLUTIONS[name]()
    layer, x = layer.double(), x.double()
    pre = curvature(layer, method=method)
    y = layer(x)
    gradient = output_gradient(y)
    loss_of(y).backward()
    plain = gradient_matrix(layer.weight, layer.bias)
    pre.step()
    groups = layer.groups

    def call(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        alone = nn.utils.skip_init(
            type(layer),
            inputs.shape[1],
            len(weight),
            layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            padding_mode=layer.padding_mode,
            bias=bias is not None,
            dtype=torch.float64,
        )
        parameters = {"weight": weight} | ({} if bias is None else {"bias": bias})
        return torch.func.functional_call(alone, parameters, (inputs,))

    expected = []
    for group in range(groups):
        mine = [
            None if t is None else t.chunk(groups)[group] for t in (layer.weight, layer.bias)
        ]
        rows, flat = rows_of(call, x.chunk(groups, 1)[group], mine[0], mine[1], channels=1)
        g = gradient.chunk(groups, 1)[group].movedim(1, -1).reshape(flat.shape)
        own = plain.chunk(groups)[group]
        torch.testing.assert_close(g.T @ rows / len(x), own)  # the rows are the layer's
        dense = dense_factors(rows, g, terms=len(x))
        expected.append(precondition(dense, own, DAMPING, method))
    torch.testing.assert_close(gradient_matrix(layer.weight, layer.bias), torch.cat(expected))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 4), (3, 2, 4)])
def test_a_linear_layer_is_preconditioned_like_the_dense_oracle(
    shape: tuple[int, ...], bias: bool, method: str
) -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(4, 3, bias=bias).double(), torch.randn(shape, dtype=torch.float64)
    pre = curvature(layer, method=method)
    y = layer(x)
    gradient = output_gradient(y)
    loss_of(y).backward()
    plain = gradient_matrix(layer.weight, layer.bias)
    pre.step()
    rows, flat = rows_of(F.linear, x, layer.weight, layer.bias, channels=-1)
    dense = dense_factors(rows, gradient.reshape(flat.shape), terms=len(x))
    expected = precondition(dense, plain, DAMPING, method)
    torch.testing.assert_close(gradient_matrix(layer.weight, layer.bias), expected)


def test_for_one_example_the_fisher_is_the_outer_product_of_its_gradient() -> None:
    torch.manual_seed(2)
    layer = nn.Linear(4, 3).double()
    pre = curvature(layer, method="eigen")
    loss_of(layer(torch.randn(1, 4, dtype=torch.float64))).backward()
    plain = gradient_matrix(layer.weight, layer.bias).flatten()
    pre.step()
    fisher = torch.outer(plain, plain) + DAMPING * torch.eye(len(plain), dtype=torch.float64)
    found = gradient_matrix(layer.weight, layer.bias).flatten()
    torch.testing.assert_close(found, torch.linalg.solve(fisher, plain))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("padding", [None, 2])
def test_an_embedding_is_preconditioned_like_the_dense_oracle(
    padding: int | None, method: str
) -> None:
    torch.manual_seed(3)
    layer = nn.Embedding(6, 3, padding_idx=padding).double()
    tokens = torch.tensor([[0, 1, 2, 1], [5, 5, 2, 0]])
    pre = curvature(layer, method=method)
    y = layer(tokens)
    gradient = output_gradient(y)
    loss_of(y).backward()
    plain = layer.weight.grad.clone()
    pre.step()
    kept = tokens.flatten() != (-1 if padding is None else padding)
    rows = F.one_hot(tokens.flatten(), 6).double()[kept]
    dense = dense_factors(rows, gradient.reshape(-1, 3)[kept], terms=2)
    expected = precondition(dense, plain.T.contiguous(), DAMPING, method).T
    torch.testing.assert_close(layer.weight.grad, expected)


ATTENTIONS: dict[str, dict[str, Any]] = {
    "packed": {},
    "without bias": {"bias": False},
    "batch first": {"batch_first": True},
    "separate": {"kdim": 3, "vdim": 5},
    "extra keys": {"add_zero_attn": True},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_preconditioned_like_the_dense_oracle(name: str, method: str) -> None:
    torch.manual_seed(4)
    options = ATTENTIONS[name]
    layer = nn.MultiheadAttention(4, 2, **options).double()
    query, key, value = (
        torch.randn(3, 2, n, dtype=torch.float64)
        for n in (4, options.get("kdim", 4), options.get("vdim", 4))
    )
    pre = curvature(layer, method=method)
    y, _ = layer(query, key, value)
    loss_of(y).backward()
    plain = {n: p.grad.clone() for n, p in layer.named_parameters()}
    pre.step()
    for part, rows, grads, weight, bias in attention_rows(layer, query, key, value, plain):
        torch.testing.assert_close(grads.T @ rows / len(query), plain_of(plain, weight, bias))
        dense = dense_factors(rows, grads, terms=len(query))
        expected = precondition(dense, plain_of(plain, weight, bias), DAMPING, method)
        now = {n: p.grad for n, p in layer.named_parameters()}
        torch.testing.assert_close(plain_of(now, weight, bias), expected, msg=part)


Slot = tuple[str, slice]


def plain_of(grads: dict[str, Tensor], weight: Slot, bias: Slot) -> Tensor:
    matrix = grads[weight[0]][weight[1]]
    if bias[0] not in grads:
        return matrix
    return torch.cat([matrix, grads[bias[0]][bias[1]][:, None]], 1)


def attention_rows(
    layer: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, plain: Any
) -> list[tuple[str, Tensor, Tensor, Slot, Slot]]:
    """Rows of the four products, from attention written out by hand."""
    width, heads = layer.embed_dim, layer.num_heads
    whole = slice(None)
    parts: list[tuple[str, Tensor, Slot, Slot]] = []
    for number, (part, x) in enumerate((("q", query), ("k", key), ("v", value))):
        rows = slice(number * width, (number + 1) * width)
        weight = (f"{part}_proj_weight", whole)
        if f"{part}_proj_weight" not in plain:
            weight = ("in_proj_weight", rows)
        parts.append((part, x, weight, ("in_proj_bias", rows)))
    parameters = {n: p.detach() for n, p in layer.named_parameters()}
    outputs = []
    for _, x, weight, bias in parts:
        b = parameters[bias[0]][bias[1]] if bias[0] in parameters else None
        outputs.append(F.linear(x, parameters[weight[0]][weight[1]], b).requires_grad_())
    first = 1 if not layer.batch_first else 0  # where the batch is

    def split(t: Tensor) -> Tensor:
        t = t.movedim(first, 0)
        return t.reshape(*t.shape[:2], heads, width // heads).transpose(1, 2)

    q, k, v = map(split, outputs)
    if layer.add_zero_attn:
        nothing = torch.zeros_like(k[:, :, :1])
        k, v = torch.cat([k, nothing], 2), torch.cat([v, nothing], 2)
    mixed = ((q @ k.mT) / (width // heads) ** 0.5).softmax(-1) @ v
    mixed = mixed.transpose(1, 2).flatten(2).movedim(0, first)
    bias = parameters.get("out_proj.bias")
    y = F.linear(mixed, parameters["out_proj.weight"], bias)
    parts.append(("out", mixed.detach(), ("out_proj.weight", whole), ("out_proj.bias", whole)))
    grads = torch.autograd.grad(loss_of(y) * len(query), [*outputs, y])
    found = []
    for (part, x, weight, bias_slot), g in zip(parts, grads, strict=True):
        rows = x.reshape(-1, x.shape[-1])
        if bias_slot[0] in parameters:
            rows = F.pad(rows, (0, 1), value=1.0)
        found.append((part, rows, g.reshape(-1, width), weight, bias_slot))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_layer_that_is_used_twice_has_the_rows_of_both_uses(method: str) -> None:
    torch.manual_seed(5)
    layer = nn.Linear(3, 3).double()
    x = torch.randn(4, 3, dtype=torch.float64)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer
            self.again = nn.Linear(3, 3).double()
            self.again.weight, self.again.bias = layer.weight, layer.bias

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.layer(x).tanh())

    model = Twice()
    pre = curvature(model, method=method)
    loss_of(model(x)).backward()
    plain = gradient_matrix(layer.weight, layer.bias)
    pre.step()
    first = F.linear(x, layer.weight.detach(), layer.bias.detach()).requires_grad_()
    middle = first.tanh()
    second = F.linear(middle, layer.weight.detach(), layer.bias.detach())
    grads = torch.autograd.grad(loss_of(second) * len(x), [first, second])
    rows = F.pad(torch.cat([x, middle.detach()]), (0, 1), value=1.0)
    dense = dense_factors(rows, torch.cat(grads), terms=len(x))
    expected = precondition(dense, plain, DAMPING, method)
    torch.testing.assert_close(gradient_matrix(layer.weight, layer.bias), expected)


def test_a_side_that_is_too_large_keeps_its_diagonal() -> None:
    torch.manual_seed(6)
    layer = nn.Linear(4, 6).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    pre = curvature(layer, method="eigen", largest_factor=5)
    y = layer(x)
    gradient = output_gradient(y)
    loss_of(y).backward()
    plain = gradient_matrix(layer.weight, layer.bias)
    pre.step()
    dense = dense_factors(F.pad(x, (0, 1), value=1.0), gradient, terms=len(x))
    dense.gradients = dense.gradients.diagonal().diag()
    expected = precondition(dense, plain, DAMPING, "eigen")
    torch.testing.assert_close(gradient_matrix(layer.weight, layer.bias), expected)
