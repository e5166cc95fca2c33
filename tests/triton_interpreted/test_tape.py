"""The tape on a device with Triton's kernels, which it does not wait for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import encke
from encke.codec.unsettled import Unsettled, can_go_on
from encke.ops.triton.later import Later

BOUND = encke.Absolute(0.02)
POLICY = encke.Fixed(BOUND, codec="fixed")


@pytest.fixture(autouse=True)
def triton_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENCKE_BACKEND", "triton")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 8))


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def forward(model: nn.Module, batch: int = 32) -> Tensor:
    """One tensor is large enough to be packed: what tanh returns."""
    x = torch.randn(batch, 16, generator=torch.Generator().manual_seed(1))
    loss: Tensor = model(x).square().mean()
    return loss


def test_gradients_are_those_of_the_reference_and_forward_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert can_go_on(torch.device("cpu"), "fixed", BOUND)
    assert not can_go_on(torch.device("cpu"), "fixed", encke.RangeRelative(0.02))
    model, same = network(), network()
    tape = encke.attach(model, policy=POLICY)
    reference = encke.attach(same, policy=POLICY)
    for _ in range(2):  # in the second step there is just the room that the first needed
        monkeypatch.setenv("ENCKE_BACKEND", "triton")
        with monkeypatch.context() as patch:
            patch.setattr(Later, "ready", lambda _: False)
            for name in ("item", "tolist", "__int__", "cpu"):
                patch.setattr(Tensor, name, _refuse)
            loss = forward(model)
        assert [r.codec for r in tape.records if r.error] == ["fixed"]
        found = gradients(model, loss)
        assert tape.stored_bytes == 0
        monkeypatch.setenv("ENCKE_BACKEND", "reference")
        for one, other in zip(found, gradients(same, forward(same)), strict=True):
            assert torch.equal(one, other)
    tape.detach()
    reference.detach()


def _refuse(*_: Any) -> None:
    pytest.fail("the host waited")


def test_bytes_are_counted_as_room_until_the_length_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = network()
    tape = encke.attach(model, policy=POLICY)
    monkeypatch.setattr(Later, "ready", lambda _: False)
    loss = forward(model, batch=33)  # of a size that no room is known for
    roomy = tape.stored_bytes
    for reference in list(tape._unsettled):
        pending = reference()
        assert isinstance(pending, Unsettled)
        pending.settle()
    assert 0 < tape.stored_bytes < roomy / 1.5
    del loss, pending, reference
    assert tape.stored_bytes == 0


def test_a_tensor_that_turns_out_longer_than_the_last_is_packed_again() -> None:
    model = network()
    tape = encke.attach(model, policy=POLICY)
    for scale in (1e-3, 10.0):  # from hardly any bits to many
        x = scale * torch.randn(34, 16, generator=torch.Generator().manual_seed(2))
        loss = model(x).square().mean()
        loss.backward()
    tape.detach()
    plain = network()
    plain(x).square().mean().backward()
    change = model[0].weight.grad - plain[0].weight.grad  # type: ignore[operator]
    assert 0 < float(change.abs().max()) < 0.02
