"""A language model with a tape: its loss without logits, exact, in unchanged models."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import encke

WORDS, WIDTH = 8192, 64


class Tied(nn.Module):
    """A language model whose embedding is its head's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(torch.tanh(self.middle(self.words(ids))))
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        return loss, logits


def model() -> Tied:
    torch.manual_seed(0)
    return Tied()


def ids() -> Tensor:
    return torch.randint(0, WORDS, (4, 160), generator=torch.Generator().manual_seed(1))


def gradients(net: nn.Module, loss: Tensor) -> list[Tensor]:
    net.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def test_loss_and_gradients_are_those_of_plain_training() -> None:
    plain, tied = model(), model()
    loss, _ = plain(ids())
    expected = gradients(plain, loss)
    encke.attach(tied, policy=encke.Fixed(encke.Lossless()))
    small, _ = tied(ids())
    torch.testing.assert_close(small, loss)
    for a, b in zip(gradients(tied, small), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("when", ["before backward", "after it", "after the step"])
def test_logits_that_are_used_are_those_of_plain_training(when: str) -> None:
    plain, tied = model(), model()
    expected = plain(ids())[1].detach()
    optimizer = torch.optim.SGD(tied.parameters(), lr=1.0)
    encke.attach(tied, optimizer, policy=encke.Fixed(encke.Lossless()))
    loss, logits = tied(ids())
    found = logits.detach().clone() if when == "before backward" else None
    loss.backward()
    if when == "after it":
        found = logits.detach().clone()
    optimizer.step()
    if found is None:
        found = logits.detach().clone()
    torch.testing.assert_close(found, expected)


def test_no_tensor_of_the_logits_size_is_stored() -> None:
    net = model()
    tape = encke.attach(net, policy=encke.Fixed(encke.RmsRelative(0.05)))
    loss, logits = net(ids())
    del logits
    assert tape.plain_bytes < 4 * 160 * WORDS * 4 / 4
    loss.backward()
    assert tape.stored_bytes == 0


def test_without_it_logits_are_made_as_ever() -> None:
    net = model()
    tape = encke.attach(net, policy=encke.Fixed(encke.RmsRelative(0.05)), head=False)
    _, logits = net(ids())
    assert type(logits) is Tensor
    assert tape.plain_bytes >= 4 * 159 * WORDS * 4
