"""Softmaxes written by hand: no row's gradient is spoilt, however small its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import encke
from encke.tape import Tape

POLICIES: dict[str, Callable[[], Any]] = {
    "rms": lambda: encke.Fixed(encke.RmsRelative(0.02)),
    "range": lambda: encke.Fixed(encke.RangeRelative(1e-3)),
    "tolerance": lambda: encke.Adaptive(0.01),
}
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


class Attention(nn.Module):
    """Scores less their global maximum: rows far below it have tiny exponentials and sums."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        exponentials = (scores - scores.max()).exp()
        weights = exponentials / exponentials.sum(-1, keepdim=True)
        return weights @ self.value(x)


class EdgeSoftmax(nn.Module):
    """A graph attention layer: the weights of each node's incoming edges add up to one."""

    def __init__(self, nodes: int, edges: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.source, self.target = torch.randint(0, nodes, (2, edges), generator=generator)
        self.features = nn.Linear(16, 32)
        self.attend = nn.Linear(64, 1)
        self.nodes = nodes

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        ends = torch.cat([h[self.source], h[self.target]], 1)
        scores = nn.functional.leaky_relu(self.attend(ends).squeeze(1) * 8, 0.2)
        exponentials = (scores - scores.max()).exp()
        sums = torch.zeros(self.nodes).index_add(0, self.target, exponentials)
        weights = exponentials / (sums[self.target] + 1e-16)
        return torch.zeros_like(h).index_add(0, self.target, h[self.source] * weights[:, None])


def largest_row_error(model: nn.Module, x: Tensor, policy: Any) -> float:
    """Of the input's gradient, against the root mean square of the rows' norms."""

    def gradient(tape: Tape | None) -> Tensor:
        leaf = x.clone().requires_grad_()
        if tape is None:
            out = model(leaf + 0)
        else:
            with tape:
                out = model(leaf + 0)
        generator = torch.Generator().manual_seed(7)
        (out * torch.randn(out.shape, generator=generator)).sum().backward()
        assert leaf.grad is not None
        return leaf.grad.flatten(0, -2)

    plain = gradient(None)
    tape = Tape(policy, model=model)
    norms = plain.norm(dim=1)
    worst = 0.0
    for _ in range(3):
        error = (gradient(tape) - plain).norm(dim=1)
        worst = max(worst, float(error.max() / norms.square().mean().sqrt()))
    return worst


@EVERY_POLICY
def test_no_row_of_a_hand_written_attention_is_spoilt(policy: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 64, 32) * torch.linspace(0.2, 3, 64)[:, None]
    assert largest_row_error(Attention(), x, policy()) < 0.5


@EVERY_POLICY
def test_no_row_of_an_edge_softmax_is_spoilt(policy: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 16) * torch.linspace(0.2, 3, 300)[:, None]
    assert largest_row_error(EdgeSoftmax(300, 3000), x, policy()) < 0.5


def test_a_dividend_beside_a_reciprocal_stays_exact() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    tape = Tape(encke.Fixed(encke.RmsRelative(0.02)))
    with tape:
        e = (x - x.max()).exp()
        y = (e * 2) * e.sum(1, keepdim=True).reciprocal()
    kept = {f"{r.site.op}.{r.site.role}": r for r in tape.records if r.shape == (64, 64)}
    assert kept["Exp.result"].how == kept["Mul.self"].how == "exact"
    assert "divided" in kept["Mul.self"].why
    y.sum().backward()


@pytest.mark.parametrize(
    ("exponent", "how"), [(2, "lossy"), (3, "lossy"), (0.5, "exact"), (-1, "exact")]
)
def test_only_small_whole_powers_are_kept_with_an_error(exponent: float, how: str) -> None:
    x = torch.rand(64, 64, requires_grad=True)
    tape = Tape(encke.Fixed(encke.RmsRelative(0.02)))
    with tape:
        y = (x + 1) ** exponent
    saved = [r.how for r in tape.records if r.shape == (64, 64)]
    assert set(saved) == {how}
    y.sum().backward()
