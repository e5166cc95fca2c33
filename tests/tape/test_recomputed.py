"""What follows from kept tensors, or from an op run again, is not stored."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import encke
from encke.tape import Tape
from encke.tape.autograd.version_check import ModifiedError

LOSSLESS = encke.Fixed(encke.Lossless())
LOSSY = encke.Fixed(encke.RmsRelative(0.02))
SHAPE = (64, 48)


def stored(function: Callable[..., Tensor], *inputs: Tensor) -> list[str]:
    """The places of the tensors of the inputs' shape that are packed or held."""
    tape = Tape(LOSSY)
    with tape:
        out = function(*(x + 0 for x in inputs))
    found = [
        f"{r.site.op}.{r.site.role}"
        for r in tape.records
        if r.stored and r.shape == tuple(inputs[0].shape)
    ]
    out.sum().backward()
    return found


def activation(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


WEIGHT = nn.Parameter(torch.randn(48, 32) / 7)


def gelu_written_out(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


def rms_norm_written_out(x: Tensor, gain: Tensor) -> Tensor:
    x = x.to(torch.float32)
    return gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def test_a_gelu_that_is_written_out_stores_its_input_alone() -> None:
    assert stored(lambda x: gelu_written_out(x) @ WEIGHT, activation(*SHAPE)) == ["Pow.self"]


def test_an_rms_norm_that_is_written_out_stores_its_input_alone() -> None:
    gain = nn.Parameter(torch.randn(48))
    found = stored(lambda x: rms_norm_written_out(x, gain) @ WEIGHT, activation(*SHAPE))
    assert found == ["Pow.self"]


def test_a_gated_unit_stores_its_gate_and_its_values() -> None:
    found = stored(
        lambda gate, up: (F.silu(gate) * up) @ WEIGHT, activation(*SHAPE), activation(*SHAPE)
    )
    assert found == ["Silu.self", "Mul.other"]


def test_silu_behind_a_group_norm_stores_the_norms_input_alone() -> None:
    norm, kernel = nn.GroupNorm(4, 8), nn.Parameter(torch.randn(6, 8, 3, 3) / 9)
    found = stored(lambda x: F.conv2d(F.silu(norm(x)), kernel), activation(4, 8, 16, 16))
    assert found == ["NativeGroupNorm.input"]


def test_a_long_chain_is_stored_now_and_then() -> None:
    def chain(x: Tensor) -> Tensor:
        for _ in range(30):
            x = (x * x + 1).sin()
        return x

    assert 2 <= len(stored(chain, activation(*SHAPE))) <= 20


def test_what_is_divided_by_is_not_computed_again() -> None:
    found = stored(lambda x: (x / (x.square() + 1)) @ WEIGHT, activation(*SHAPE))
    assert "Mm.self" in found


def test_an_operand_that_is_changed_later_raises_as_without_a_tape() -> None:
    x, scale = activation(*SHAPE), nn.Parameter(torch.randn(48))
    tape = Tape(LOSSY)
    with tape:
        out = (F.silu(x + 0) * scale) @ WEIGHT
    with torch.no_grad():
        scale.add_(1)
    with pytest.raises(ModifiedError, match="modified by an inplace operation"):
        torch.autograd.grad(out.sum(), WEIGHT)


def test_a_function_of_the_users_with_the_name_of_an_op_is_not_taken_for_it() -> None:
    class Tanh(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(_ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0] * 3

    weight = nn.Parameter(WEIGHT.detach().clone())
    x = activation(*SHAPE)
    with Tape(LOSSY):
        y = F.silu(x + 0)
        out = Tanh.apply(y) @ weight
    out.sum().backward()
    expected = (F.silu(x) * 3).sum(0)[:, None].expand(48, 32)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, expected, atol=0.5, rtol=0.05)


# -- constants -------------------------------------------------------------------------------


def test_a_table_that_every_layer_multiplies_by_is_held_once() -> None:
    table = torch.randn(64, 48)
    tape = Tape(LOSSY)
    with tape:
        y = activation(4, 64, 48) + 0
        for _ in range(8):
            y = y * table.unsqueeze(0)
    assert tape.stored_bytes == tape.plain_bytes == table.numel() * 4
    y.sum().backward()


def test_an_attention_mask_of_two_values_takes_one_bit_a_value() -> None:
    mask = torch.zeros(2, 4, 64, 64).masked_fill(torch.ones(64, 64).triu(1).bool(), -math.inf)
    q, k, v = (activation(2, 4, 64, 16) for _ in range(3))
    plain = torch.autograd.grad(
        F.scaled_dot_product_attention(q + 0, k + 0, v + 0, attn_mask=mask).sum(), (q, k, v)
    )
    tape = Tape(LOSSLESS)
    with tape:
        out = F.scaled_dot_product_attention(q + 0, k + 0, v + 0, attn_mask=mask)
    kept = next(r for r in tape.records if r.site.role == "attn_mask")
    assert kept.stored * 30 < kept.plain
    for a, b in zip(plain, torch.autograd.grad(out.sum(), (q, k, v)), strict=True):
        assert torch.equal(a, b)


# -- layers that run again -------------------------------------------------------------------


def gradients(model: nn.Module, x: Tensor, policy: Any, steps: int = 1) -> tuple[Any, Tape]:
    tape = encke.attach(model, policy=policy) if policy is not None else None
    for step in range(steps):
        torch.manual_seed(step)
        model.zero_grad()
        model(x).square().sum().backward()
    if tape is not None:
        tape.detach()
    return [p.grad for p in model.parameters()], tape  # type: ignore[return-value]


class Recurrent(nn.Module):
    def __init__(self, *, given: bool = False, **options: Any) -> None:
        super().__init__()
        self.layers = nn.LSTM(24, 40, **options)
        self.given = given

    def forward(self, x: Tensor) -> Tensor:
        ways = 2 if self.layers.bidirectional else 1
        state = torch.ones(ways * self.layers.num_layers, 8, 40).tanh()
        out: Tensor = self.layers(x, (state, state) if self.given else None)[0]
        return out


@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True, "num_layers": 2, "dropout": 0.2}, {"given": True}],
    ids=["one", "both_ways", "given_state"],
)
def test_an_lstm_keeps_its_input_alone_and_loses_no_bit(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = Recurrent(**options), torch.randn(20, 8, 24)
    plain, _ = gradients(model, x, None)
    exact, _ = gradients(model, x, LOSSLESS)
    assert all(torch.equal(a, b) for a, b in zip(plain, exact, strict=True))
    lossy, tape = gradients(model, x, LOSSY)
    held, before = tape.last_forward
    assert before > 8 * held
    for a, b in zip(plain, lossy, strict=True):
        assert (a - b).norm() < 0.03 * a.norm()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_lstm_of_another_dtype_gets_its_own_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Recurrent().to(dtype), torch.randn(20, 8, 24, dtype=dtype)
    plain, _ = gradients(model, x, None)
    exact, _ = gradients(model, x, LOSSLESS)
    assert all(torch.equal(a, b) for a, b in zip(plain, exact, strict=True))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32))
            for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for part in self.parts:
            x = x + checkpoint(part, x, use_reentrant=True)
        return x


def test_the_input_of_a_reentrant_checkpoint_is_packed() -> None:
    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(128, 32)
    plain, _ = gradients(model, x, None)
    exact, _ = gradients(model, x, LOSSLESS)
    assert all(torch.equal(a, b) for a, b in zip(plain, exact, strict=True))
    lossy, tape = gradients(model, x, LOSSY)
    held, before = tape.last_forward
    assert before > 3 * held
    for a, b in zip(plain, lossy, strict=True):
        assert (a - b).norm() < 0.05 * a.norm()


def test_measuring_an_error_does_not_run_a_checkpoint_twice() -> None:
    """Its backward adds to the gradients of what it computes again."""
    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(128, 32)
    plain, _ = gradients(model, x, None)
    observed, _ = gradients(model, x, encke.Adaptive(0.01))
    for a, b in zip(plain, observed, strict=True):
        assert (a - b).norm() < 0.2 * a.norm()


def test_a_small_slice_that_two_ops_save_is_copied_once() -> None:
    tape = Tape(LOSSY)
    with tape:
        one, other, *_ = (activation(7, 512) + 0).unsafe_chunk(4, 1)
        y = one.sigmoid_() * other.tanh_()
    assert tape.stored_bytes == 2 * 7 * 128 * 4
    y.sum().backward()
