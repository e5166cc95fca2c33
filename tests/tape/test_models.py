"""Whole networks give the gradients of plain autograd, bit for bit, when nothing is lossy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import encke
from encke.study import zoo

LOSSLESS = encke.Fixed(encke.Lossless())
#: Options that make each model of the zoo small, yet its tensors large enough to be packed.
SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": 64},
    "alexnet": {"size": 64, "classes": 5, "hidden": 32},
    "vgg16": {"size": 32, "classes": 5, "hidden": 32},
    "resnet18": {"size": 32, "width": 8, "classes": 5},
    "resnet50": {"size": 32, "width": 8, "classes": 5},
    "resnet_cifar": {"depth": 8, "width": 8},
    "gpt": {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "vocab": 11},
    "vit_tiny": {"size": 16, "patch": 4, "depth": 2, "classes": 5},
    "gcn": {"features": 30, "hidden": 32, "nodes": 60},
    "graphsage": {"features": 30, "hidden": 32, "nodes": 60},
    "unet": {"width": 8, "rows": 16, "columns": 32, "depth": 2},
}


def gradients(model: nn.Module, loss: Callable[[], Tensor], steps: int = 2) -> list[Tensor]:
    """Of a few steps, with the same random numbers and statistics each time it is called."""
    state = {n: b.clone() for n, b in model.named_buffers()}
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        model.zero_grad()
        loss().backward()
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(state[name])
    return found


def assert_same_gradients(model: nn.Module, loss: Callable[[], Tensor]) -> encke.Tape:
    plain = gradients(model, loss)
    tape = encke.attach(model, policy=LOSSLESS)
    kept = gradients(model, loss)
    assert len(plain) == len(kept) > 0
    names = [n for n, p in model.named_parameters() if p.grad is not None]
    wrong = [
        names[i % len(names)]
        for i, (a, b) in enumerate(zip(plain, kept, strict=True))
        if not torch.equal(a, b)
    ]
    assert not wrong
    assert tape.stored_bytes == tape.plain_bytes == 0
    assert any(r.how != "exact" for r in tape.records)
    return tape


def assert_close_gradients(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    """A thousandth of each tensor's range leaves gradients within a tenth."""
    plain = gradients(model, loss)
    tape = encke.attach(model, policy=encke.Fixed(encke.RangeRelative(1e-3)))
    kept = gradients(model, loss)
    tape.detach()
    error = sum(float((a - b).square().sum()) for a, b in zip(plain, kept, strict=True))
    assert error < 0.01 * sum(float(a.square().sum()) for a in plain)


@pytest.mark.parametrize("name", zoo.names())
def test_a_network_of_the_zoo(name: str) -> None:
    model = zoo.model(name, **SMALL[name])
    network = model.build(seed=1)
    batch = model.sample_batch(32 if name == "mlp" else 4)
    assert_close_gradients(network, lambda: model.loss_of(network, batch))
    assert_same_gradients(network, lambda: model.loss_of(network, batch))


@pytest.mark.parametrize("name", ["resnet_cifar", "unet"])
def test_a_network_in_channels_last(name: str) -> None:
    model = zoo.model(name, **SMALL[name])
    network = model.build(seed=1).to(memory_format=torch.channels_last)
    batch = model.sample_batch(4)
    inputs = [
        x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
        for x in batch.inputs
    ]
    assert_same_gradients(network, lambda: model.loss(network(*inputs), batch.target))


# -- layers of torch.nn --------------------------------------------------------------------


SEQUENCE = (4, 24, 32)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_multi_head_attention(need_weights: bool, dropout: float) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, dropout=dropout, batch_first=True)
    x, y = torch.randn(SEQUENCE), torch.randn(SEQUENCE)
    mask = torch.ones(24, 24).tril().log()

    def loss() -> Tensor:
        own, weights = layer(x, x, x, need_weights=need_weights, attn_mask=mask)
        cross, _ = layer(x, y, y, need_weights=need_weights)
        total: Tensor = own.square().mean() + cross.square().mean()
        return total if weights is None else total + weights.square().mean()

    assert_same_gradients(layer, loss)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_transformer_layer(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        32, 4, 64, activation=activation, norm_first=norm_first, batch_first=True
    )
    x = torch.randn(SEQUENCE)
    assert_same_gradients(layer, lambda: layer(x).square().mean())


def test_a_transformer_with_encoder_and_decoder() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)
    x, y = torch.randn(SEQUENCE), torch.randn(SEQUENCE)
    assert_same_gradients(model, lambda: model(x, y).square().mean())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    layer = kind(32, 40, num_layers=2, bidirectional=True, dropout=0.1, batch_first=True)
    x = torch.randn(32, 12, 32)
    assert_same_gradients(layer, lambda: layer(x)[0].square().mean())


def test_recurrent_cells_over_time() -> None:
    torch.manual_seed(0)
    cell = nn.LSTMCell(32, 40)
    x = torch.randn(6, 64, 32)

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for step in x:
                state = self.cell(step, state)
            assert state is not None
            return state[0]

    model = Unrolled()
    assert_same_gradients(model, lambda: model(x).square().mean())


# -- networks that share, split and join tensors -------------------------------------------


class Shared(nn.Module):
    """One block called twice, and an embedding that is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 32)
        self.block = nn.Sequential(
            nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)
        )
        self.out = nn.Linear(32, 50, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = x + self.block(x)
        x = x + self.block(x)
        result: Tensor = self.out(x)
        return result


def test_weights_used_twice() -> None:
    model = Shared()
    tokens = torch.randint(0, 50, (8, 24))
    tape = assert_same_gradients(model, lambda: model(tokens).square().mean())
    norms = [r.site for r in tape.records if r.site.op == "NativeLayerNorm"]
    assert {s.index for s in norms if s.role == "input"} == {0, 1}


class Dense(nn.Module):
    """Each layer sees the concatenation of all before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(8 * (i + 1)), nn.ReLU(), nn.Conv2d(8 * (i + 1), 8, 3, padding=1)
            )
            for i in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for layer in self.layers:
            parts.append(layer(torch.cat(parts, dim=1)))
        return torch.cat(parts, dim=1)


def test_concatenations() -> None:
    model, x = Dense(), torch.randn(4, 8, 12, 12)
    assert_same_gradients(model, lambda: model(x).square().mean())


def _split(x: Tensor) -> tuple[Tensor, ...]:
    q, k, v = x.split(32, dim=2)
    return tuple(t.view(4, 24, 4, 8).transpose(1, 2) for t in (q, k, v))


def _chunk(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.reshape(4, 24, 4, 8).transpose(1, 2) for t in x.chunk(3, dim=-1))


def _unbind(x: Tensor) -> tuple[Tensor, ...]:
    return x.view(4, 24, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)


def _slices(x: Tensor) -> tuple[Tensor, ...]:
    parts = x.view(4, 24, 4, 24).transpose(1, 2)
    return parts[..., :8], parts[..., 8:16], parts[..., 16:]


def _fused(q: Tensor, k: Tensor, v: Tensor, dropout: nn.Module) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _by_hand(q: Tensor, k: Tensor, v: Tensor, dropout: nn.Module) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones(24, 24).triu(1).bool(), -torch.inf)
    result: Tensor = dropout(scores.softmax(-1)) @ v
    return result


class Attention(nn.Module):
    def __init__(self, split: Callable[..., Any], attend: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inputs, self.outputs = nn.Linear(32, 96), nn.Linear(32, 32)
        self.dropout = nn.Dropout(0.2)
        self.split, self.attend = split, attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.inputs(x))
        y = self.attend(q, k, v, self.dropout)
        result: Tensor = self.outputs(y.transpose(1, 2).reshape(4, 24, 32))
        return result


@pytest.mark.parametrize("attend", [_fused, _by_hand])
@pytest.mark.parametrize("split", [_split, _chunk, _unbind, _slices])
def test_attention_over_parts_of_one_tensor(
    split: Callable[..., Any], attend: Callable[..., Tensor]
) -> None:
    model, x = Attention(split, attend), torch.randn(SEQUENCE)
    assert_close_gradients(model, lambda: model(x).square().mean())
    assert_same_gradients(model, lambda: model(x).square().mean())


def test_a_residual_that_is_changed_in_place() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.other = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x)
            x += self.other(x.relu())
            x[:, :4] *= 2
            return x.relu_()

    model, x = Residual(), torch.randn(4, 8, 12, 12)
    assert_same_gradients(model, lambda: model(x).square().mean())


def test_weights_that_are_computed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(48, 64)),
        nn.ReLU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)),
        nn.Tanh(),
        nn.utils.parametrizations.orthogonal(nn.Linear(64, 64)),
    )
    x = torch.randn(32, 48)
    assert_same_gradients(model, lambda: model(x).square().mean())
