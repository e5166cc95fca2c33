"""What `advise` expects before a training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import encke
from encke.errors import UnsupportedError
from encke.tape.peak import Peak


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(512, 512), nn.GELU())))


@pytest.mark.slow
def test_the_expected_peak_is_the_peak_of_a_training_step() -> None:
    model, x = network(), torch.randn(8192, 512)
    model(x).square().mean().backward()  # the first step of a process also loads libraries
    model.zero_grad(set_to_none=True)
    expected = encke.advise(model, x).expected_peak
    tape = encke.attach(model)
    try:
        with Peak() as peak:
            for _ in range(4):
                model(x).square().mean().backward()
                model.zero_grad(set_to_none=True)
    finally:
        tape.detach()
    assert 0.85 < expected / peak.bytes < 1.15


def test_a_function_that_computes_the_loss_takes_the_place_of_a_batch() -> None:
    model, x = network(), torch.randn(64, 512)
    by_batch = encke.advise(model, x, loss=lambda y: y.square().mean())
    by_function = encke.advise(model, lambda: model(x).square().mean())
    assert by_function.stored == by_batch.stored
    assert by_function.plain == by_batch.plain
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(UnsupportedError, match="it must return the loss of a batch"):
        encke.advise(model, lambda: model(x))
