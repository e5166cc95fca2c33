"""Probes of a compiled graph, held against backward as a whole with the error in it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from compiling import compiled, transformer
from nets import gradients, small_net
from torch import Tensor, fx, nn

import encke
from encke.control import Adaptive
from encke.tape.compiled import operators, probes
from encke.tape.effects.probe import Noise, square

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]

Changes = dict[int, dict[str, float]]
_DRAWS = 8  # of errors that the whole backward is run with: one alone scatters


class Plainly(fx.Interpreter):
    """A backward graph as it is."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is operators.tape_observe:
            return torch.zeros(())
        return super().call_function(target, args, kwargs)


class Block(nn.Module):
    """Two convolutions with norms, and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.way(x))


def residual() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [Block(8) for _ in range(3)]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )


MODELS: dict[str, tuple[Any, Any]] = {
    "plain": (small_net, lambda: torch.randn(32, 3, 16, 16)),
    "residual": (residual, lambda: torch.randn(16, 3, 18, 18)),
    "text": (transformer, lambda: torch.randint(50, (16, 24))),
}


def observed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Changes, Changes, Any, list[int]]:
    """What probes report of the second step, and what the whole backward shows instead.

    Also ‖·‖² of the gradients, and which places attention reads.
    """
    build, inputs = MODELS[kind]
    model = build()
    reported: Changes = defaultdict(dict)
    whole: Changes = {}
    scales: dict[str, float] = {}
    probe = probes.observe

    def observe(graph: Any, tape: Any, given: Any, sizes: Any) -> None:
        program = graph.backward

        def run() -> dict[str, Tensor]:
            results = Plainly(program).run(*probes._arguments(program, given, sizes))
            return {name: results[i] for i, name in graph.parameters.items()}

        exact = run()
        scales.update({name: square(g) for name, g in exact.items()})
        for index, slot in probes._observed(program, given).items():
            changes: dict[str, float] = defaultdict(float)
            for seed in range(_DRAWS):
                for name, g in Noise(slot, 77 + seed).during(run).items():
                    changes[name] += square(g - exact[name]) / _DRAWS
            whole[graph.places[index].order] = dict(changes)
        probe(graph, tape, given, sizes)

    tape = encke.attach(model, refresh=1)
    run = compiled(model)
    torch.manual_seed(1)
    gradients(run, inputs())
    tape.listeners.append(
        lambda e: reported[e.order].__setitem__(e.parameter or "", e.predicted)
    )
    monkeypatch.setattr(probes, "observe", observe)
    monkeypatch.setattr(Adaptive, "_is_its_turn", lambda *_: True)
    gradients(run, inputs())
    attention = [p.order for p in tape.graphs[0].places if p.site.op in ("transpose", "detach")]
    return reported, whole, scales, attention


def relative(changes: dict[str, float], scales: dict[str, float]) -> float:
    return sum(change / scales[name] for name, change in changes.items())


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_reported_is_what_the_whole_backward_shows(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported, whole, scales, cautious = observed(kind, monkeypatch)
    assert len(whole) > 2
    assert set(reported) == set(whole)
    quotients = {
        place: relative(reported[place], scales) / relative(whole[place], scales)
        for place in whole
    }
    # Of attention's three gradients the one that suffers most counts for all.
    assert all(1 < quotients.pop(place) < 30 for place in cautious)
    assert all(0.6 < quotient < 1.5 for quotient in quotients.values())
    assert 0.8 < sum(quotients.values()) / len(quotients) < 1.25


def test_a_step_that_is_observed_draws_the_random_numbers_of_any_other() -> None:
    torch.manual_seed(0)
    x = torch.randint(50, (4, 24))

    def drawn(**options: Any) -> Tensor:
        torch.compiler.reset()
        model = transformer(dropout=0.1)
        encke.attach(model, **options)
        torch.manual_seed(3)
        gradients(compiled(model), x)
        return torch.rand(4)

    lossless = encke.Fixed(encke.Lossless())
    assert torch.equal(drawn(), drawn(policy=lossless))
