"""Random programs of views, branches and changes in place: the slow, obvious way agrees."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import encke
from encke.tape import GradientEffect, SavedTensor, StorageDecision, Tape

Step = Callable[["Layers", Tensor, Tensor], Tensor]
SHAPE = (8, 16, 12, 12)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=4, bias=False)
        self.linear = nn.Linear(12, 12)
        self.batch_norm, self.layer_norm = nn.BatchNorm2d(16), nn.LayerNorm(12)


def _halves(_: Layers, a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a[:, :8], b[:, 8:]], dim=1)


def _set_slices(_: Layers, a: Tensor, b: Tensor) -> Tensor:
    result = a.clone()
    result[:, ::2] = b[:, ::2].relu()
    return result


def _add_in_place(_: Layers, a: Tensor, b: Tensor) -> Tensor:
    result = a.flip(1) * 0.5
    result += b
    return result


STEPS: list[Step] = [
    lambda m, a, b: m.conv(a),
    lambda m, a, b: m.grouped(a),
    lambda m, a, b: m.linear(a),
    lambda m, a, b: m.batch_norm(a),
    lambda m, a, b: m.layer_norm(a),
    lambda m, a, b: F.relu(a),
    lambda m, a, b: a.clone().relu_(),
    lambda m, a, b: a.permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2),
    lambda m, a, b: F.gelu(a),
    lambda m, a, b: F.leaky_relu(a, 0.1),
    lambda m, a, b: F.hardswish(a),
    lambda m, a, b: a.softmax(-1),
    lambda m, a, b: F.dropout(a, 0.2),
    lambda m, a, b: a + b,
    lambda m, a, b: a * b.sigmoid(),
    lambda m, a, b: (a @ b.transpose(2, 3)).tanh(),
    lambda m, a, b: torch.where(b > 0, a, b),
    lambda m, a, b: F.scaled_dot_product_attention(a, b, a),
    lambda m, a, b: F.interpolate(F.max_pool2d(a, 2), scale_factor=2),
    lambda m, a, b: F.interpolate(F.avg_pool2d(a, 3, 2, 1), scale_factor=2),
    lambda m, a, b: a.transpose(2, 3),
    lambda m, a, b: a.contiguous(memory_format=torch.channels_last),
    lambda m, a, b: a.reshape(8, -1).view(SHAPE) * 1.1,
    _halves,
    _set_slices,
    _add_in_place,
]


def gradients(seed: int, tape: Tape | None) -> list[Tensor | None]:
    """Of the program that `seed` stands for."""
    torch.manual_seed(seed)
    choose = random.Random(seed)
    layers, x = Layers(), torch.randn(SHAPE, requires_grad=True)

    def program() -> Tensor:
        made = [x + 0]
        for _ in range(choose.randint(4, 14)):
            step = choose.choice(STEPS)
            made.append(step(layers, choose.choice(made[-3:]), choose.choice(made)))
        return torch.stack([t.mean() * (i + 1) for i, t in enumerate(made[-4:])]).sum()

    if tape is None:
        loss = program()
    else:
        with tape:
            loss = program()
    return list(torch.autograd.grad(loss, [x, *layers.parameters()], allow_unused=True))


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_lossless_gradients_of_any_program_are_the_plain_ones(first: int) -> None:
    for seed in range(first, first + 20):
        tape = Tape(encke.Fixed(encke.Lossless()))
        for a, b in zip(gradients(seed, None), gradients(seed, tape), strict=True):
            assert (a is None) == (b is None), seed
            assert a is None or b is None or torch.equal(a, b), seed
        assert tape.stored_bytes == tape.plain_bytes == 0


class Treated:
    """Keeps everything within a small bound, in the way that `options` say."""

    def __init__(self, **options: Any) -> None:
        self._treatment = StorageDecision(bound=encke.RangeRelative(1e-6), **options)

    def begin(self, step: int) -> None:
        """Nothing to prepare."""

    def treat(self, sight: SavedTensor) -> StorageDecision:
        return self._treatment

    def observe(self, effect: GradientEffect) -> None:
        assert effect.error >= 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is no state."""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"derive": False},
        {"recompute": True},
        {"offload": True},
        {"observe": True, "check": True},
        {"recompute": True, "offload": True, "observe": True, "check": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
@pytest.mark.slow
def test_the_error_of_any_program_vanishes_with_its_bound(options: dict[str, Any]) -> None:
    """As it would not, were a tensor derived wrongly or taken for another one."""
    for seed in range(40):
        plain, kept = gradients(seed, None), gradients(seed, Tape(Treated(**options)))
        for a, b in zip(plain, kept, strict=True):
            assert (a is None) == (b is None), seed
            if a is not None and b is not None:
                error = torch.linalg.vector_norm(a - b)
                assert error <= 0.02 * torch.linalg.vector_norm(a) + 1e-5, seed
