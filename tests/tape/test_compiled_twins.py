"""Compiled models of one class, with and without a tape: none sees another's."""

from __future__ import annotations

import copy

import pytest
import torch
from compiling import compiled
from nets import LOSSLESS, equal, gradients
from torch import Tensor, nn

import encke

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]


def test_another_model_of_the_same_class_keeps_its_tensors_as_they_are() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x).tanh().sigmoid())

    model, x = Own(), torch.randn(64, 64)
    other = copy.deepcopy(model)
    plain = gradients(other, x)
    tape = encke.attach(model, policy=encke.Fixed(encke.RangeRelative(0.2)))
    mine = gradients(compiled(model), x)
    assert tape.step == 1
    assert not torch.allclose(mine[2], plain[2], atol=1e-6)  # type: ignore[arg-type]
    theirs = gradients(compiled(other), x)
    assert tape.step == 1
    assert torch.allclose(theirs[2], plain[2], atol=1e-6)  # type: ignore[arg-type]


class Twin(nn.Module):
    """Of a class of its own: models of one class share compiled code where they can."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).tanh().sigmoid())


COARSE = encke.Fixed(encke.RangeRelative(0.2))


@pytest.mark.parametrize("first", ["with a tape", "without"])
def test_twins_share_no_error_whichever_is_called_first(first: str) -> None:
    with_tape, without, x = Twin(), Twin(), torch.randn(64, 64)
    plain = gradients(compiled(without), x)
    tape = encke.attach(with_tape, policy=COARSE)
    runs = {"with a tape": compiled(with_tape), "without": compiled(without)}
    for _ in range(2):
        for name in sorted(runs, key=lambda name: name != first):
            assert equal(plain, gradients(runs[name], x)) == (name == "without")
    assert tape.step == 2
    with tape.paused():
        assert equal(plain, gradients(runs["with a tape"], x))
        assert equal(plain, gradients(runs["without"], x))
    assert tape.step == 2
    assert not equal(plain, gradients(runs["with a tape"], x))
    tape.detach()
    for run in runs.values():
        assert equal(plain, gradients(run, x))
    assert (tape.step, tape.stored_bytes) == (3, 0)


def test_twins_with_a_tape_each_keep_through_their_own() -> None:
    models, x = [Twin(), Twin()], torch.randn(64, 64)
    plain = gradients(compiled(models[0]), x)
    tapes = [encke.attach(m, policy=p) for m, p in zip(models, (LOSSLESS, COARSE), strict=True)]
    runs = [compiled(model) for model in models]
    for number in (1, 2):
        assert equal(plain, gradients(runs[0], x))
        assert not equal(plain, gradients(runs[1], x))
        assert [tape.step for tape in tapes] == [number, number]
    tapes[1].detach()
    for run in runs:
        assert equal(plain, gradients(run, x))
    assert [tape.step for tape in tapes] == [3, 2]
