"""A model with a tape trains as without, and its activations are small meanwhile."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import encke


class Net(nn.Module):
    """Convolutions, batch norm, a residual, pooling, dropout, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.again = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(16 * 16 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.first(x)))
        x = self.relu(x + self.again(self.second(x)))
        result: Tensor = self.out(self.drop(F.max_pool2d(x, 2).flatten(1)))
        return result


def gradients(model: nn.Module, x: Tensor, target: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    F.cross_entropy(model(x), target).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.fixture
def case() -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(0)
    return Net(), torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))


def test_lossless_rules_give_the_same_gradients_bit_for_bit(
    case: tuple[Net, Tensor, Tensor],
) -> None:
    plain = gradients(*case)
    tape = encke.attach(case[0], policy=encke.Fixed(encke.Lossless()))
    kept = gradients(*case)
    assert all(torch.equal(a, b) for a, b in zip(plain, kept, strict=True))
    assert 0 < tape.ledger.stored_peak < tape.ledger.plain_peak


def test_nothing_is_held_after_backward(case: tuple[Net, Tensor, Tensor]) -> None:
    tape = encke.attach(case[0])
    for _ in range(3):
        gradients(*case)
        assert (tape.stored_bytes, tape.plain_bytes) == (0, 0)


def test_a_loose_bound_keeps_a_twentieth(case: tuple[Net, Tensor, Tensor]) -> None:
    model, x, _ = case
    tape = encke.attach(model, policy=encke.Fixed(encke.RangeRelative(0.1)))
    output = model(x)
    assert tape.stored_bytes * 20 < tape.plain_bytes
    del output


def test_detach_leaves_the_model_as_it_was(case: tuple[Net, Tensor, Tensor]) -> None:
    model, x, target = case
    names, kinds = list(model.state_dict()), [type(m) for m in model.modules()]
    plain = gradients(model, x, target)
    tape = encke.attach(model)
    assert list(model.state_dict()) == names
    assert [type(m) for m in model.modules()] == kinds
    tape.detach()
    after = gradients(model, x, target)
    assert all(torch.equal(a, b) for a, b in zip(plain, after, strict=True))
    assert tape.step == 0


def test_a_copy_of_the_model_has_no_tape(case: tuple[Net, Tensor, Tensor]) -> None:
    model, x, target = case
    tape = encke.attach(model)
    twin = copy.deepcopy(model)
    gradients(twin, x, target)
    assert tape.step == 0
    assert encke.attach(twin) is not tape


def test_the_summary_names_every_layer_and_how_it_is_kept(
    case: tuple[Net, Tensor, Tensor],
) -> None:
    tape = encke.attach(case[0])
    gradients(*case)
    text = tape.summary()
    for word in ("norm", "NativeBatchNorm.input", "lossy", "derived", "mask", "smaller"):
        assert word in text


def test_a_paused_tape_keeps_nothing(case: tuple[Net, Tensor, Tensor]) -> None:
    tape = encke.attach(case[0])
    with tape.paused():
        gradients(*case)
    assert tape.step == 0
    assert "nothing was kept" in tape.summary()
    gradients(*case)
    assert tape.step == 1
