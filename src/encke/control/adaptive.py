"""The controller: bounds as large as the gradients do not notice, tensor by tensor.

Every so often (`refresh`) one step is observed: for each kept tensor the tape reports what
an error of its size does to the gradients. From that follows a sensitivity for each tensor,
and from all of them, by water-filling, the bounds for the steps to come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import nn

from encke.bound import Absolute, RmsRelative
from encke.control.allocate import Demand, water_fill
from encke.control.gates import Gates
from encke.control.guard import Guard
from encke.control.reference import Kind, Reference
from encke.control.theory import signal_share
from encke.errors import UnsupportedError
from encke.tape.protocol import KEEP, Effect, Sight, Treatment

_CODECS = {"balance": "entropy", "ratio": "auto", "speed": "fixed"}
_MEMORY = 0.5  # of a sensitivity's running mean, in logarithms
_EARLY = 16  # steps in which the optimizer's state still forms: only the latest counts
_WARM_UP = RmsRelative(0.05)
_LARGEST = 4.0  # of a tensor's root mean square: beyond, every code is already zero


class Adaptive:
    """Keeps the variance that compression adds to the gradients below `tolerance`.

    tolerance  added variance, as a share of each gradient's own scale. Against `gradient`,
               0.01 is at most as much as a batch smaller by one per cent would add; against
               `step`, what `attach` takes where it has an optimizer, it is one per cent of
               the step that the optimizer takes
    reference  what that scale is: see `control.reference`
    refresh    steps between observations (more often at first: steps 1, 2, 4, 8, 16, 24, …)
    guard      steps between comparisons with the true gradient; 0 for none
    prefer     "balance" takes entropy coding, "ratio" tries every codec on each tensor now
               and then (prediction among them, which is slower), "speed" fixed-length blocks
    gate       whether a batch norm's input is kept only where the ReLU behind it passes
    """

    def __init__(
        self,
        tolerance: float = 0.01,
        *,
        optimizers: Iterable[torch.optim.Optimizer] = (),
        model: nn.Module | None = None,
        reference: Kind = "gradient",
        refresh: int = 50,
        guard: int = 50,
        dither: bool = True,
        prefer: Literal["balance", "ratio", "speed"] = "balance",
        derive: bool = True,
        gate: bool = True,
    ) -> None:
        if not 0 < tolerance <= 1:
            raise UnsupportedError(
                f"tolerance is {tolerance!r}, allowed is above 0 to 1; 0.01 adds one per cent "
                "of the reference's square to the gradient's variance"
            )
        self.tolerance = tolerance
        self.refresh = refresh
        self.reference = Reference(reference, optimizers)
        self.guard = Guard(every=guard)
        if prefer not in _CODECS:
            raise UnsupportedError(
                f"prefer is {prefer!r}, allowed are {', '.join(map(repr, _CODECS))}"
            )
        self._options = {"dither": dither, "codec": _CODECS[prefer], "derive": derive}
        self._parameters = dict(model.named_parameters()) if model is not None else {}
        self.gate = gate
        self.bounds: dict[str, float] = {}
        self.sensitivity: dict[str, float] = {}
        self.values: dict[str, int] = {}
        self._largest: dict[str, float] = {}
        self.gates = Gates()
        self._effects: list[Effect] = []
        self._observing = False
        self._step = 0
        self._next = 1
        self._gradients = 1
        self._shares: list[tuple[int, float]] = []

    # -- the tape's questions ------------------------------------------------------------

    def begin(self, step: int) -> None:
        if self._effects:
            self._learn()
        elif self.guard.changed():
            self._allocate()
        self._step += 1
        self._observing = self._step >= self._next
        if self._observing:
            apart = self._step if self._step < _EARLY else self._step // 2
            self._next = self._step + max(1, min(apart, self.refresh))
        self.guard.begin(self._step)

    def treat(self, sight: Sight) -> Treatment:
        name = str(sight.site)
        if self.guard.distrusts(name):
            return KEEP
        bound = self.bounds.get(name)
        if self._observing:
            self._scale(name, sight)
        return Treatment(
            bound=_WARM_UP if bound is None else Absolute(bound),
            observe=self._observing or bound is None,
            check=bound is not None and self.guard.checks(name),
            normalise=True,
            gate=self.gate and (self._observing or self.gates.is_open(name)),
            why="" if bound is None else self._why(name, bound),
            **self._options,  # type: ignore[arg-type]
        )

    def observe(self, effect: Effect) -> None:
        if effect.measured is not None:
            self.guard.judge(effect)
        if self._observing or str(effect.site) not in self.bounds:
            self._effects.append(effect)

    # -- what follows from what was seen -------------------------------------------------

    def _scale(self, name: str, sight: Sight) -> None:
        if sight.channels:
            self._largest[name] = _LARGEST
            return
        t = sight.tensor
        norm = float(torch.linalg.vector_norm(t, dtype=torch.float32))
        if math.isfinite(norm) and norm > 0:
            self._largest[name] = _LARGEST * norm / math.sqrt(t.numel())

    def _learn(self) -> None:
        effects, self._effects = self._effects, []
        sensitivity = self._sensitivities(effects)
        for name, (found, values) in sensitivity.items():
            old = self.sensitivity.get(name)
            if old is not None and old > found > 0 and self._step > _EARLY:
                # Tightened at once, loosened by and by.
                found = math.exp(_MEMORY * math.log(old) + (1 - _MEMORY) * math.log(found))
            self.sensitivity[name] = found
            self.values[name] = values
        self._allocate()

    def _sensitivities(self, effects: list[Effect]) -> dict[str, tuple[float, int]]:
        """Relative variance per squared error, summed over everyone who uses a tensor."""
        for name in {e.parameter for e in effects if e.parameter}:
            squares = [e.parameter_square for e in effects if e.parameter == name]
            self.reference.see(name, max(squares))
        scales = {
            name: self.reference.of(name, self._parameters.get(name))
            for name in {e.parameter for e in effects if e.parameter}
        }
        if self._observing or not self._shares:
            # Only a step that was observed as a whole tells what the network is made of.
            self._gradients = max(1, len(scales))
            self._shares = sorted(
                {
                    (e.order, signal_share(e))
                    for e in effects
                    if e.products and e.parameter_square > 0
                }
            )
        found: dict[str, tuple[float, int]] = {}
        for effect in effects:
            if effect.error <= 0:
                continue
            upstream = sum(share for order, share in self._shares if order < effect.order)
            relative = effect.stream * max(upstream, 1.0)
            if effect.left_out > 0:
                self.gates.see(
                    str(effect.consumer),
                    variance=effect.left_out * max(upstream, 1.0),
                    blocked=effect.blocked,
                )
            scale = scales.get(effect.parameter or "", 0.0)
            if scale > 0:
                relative += effect.predicted / scale
            name = str(effect.site)
            before, _ = found.get(name, (0.0, 0))
            found[name] = (before + relative / effect.error**2, effect.values)
        return found

    def _allocate(self) -> None:
        demands = {
            name: Demand(
                values=self.values[name],
                sensitivity=found * self.guard.caution(name),
                largest=self._largest.get(name, math.inf),
            )
            for name, found in self.sensitivity.items()
            if math.isfinite(found)
        }
        variance = self.tolerance * self._gradients
        if self.gates:
            self.gates.decide(demands, water_fill(demands, variance=variance), variance)
            variance -= self.gates.variance
        self.bounds = {
            name: bound
            for name, bound in water_fill(demands, variance=variance).items()
            if 0 < bound < math.inf
        }

    def _why(self, name: str, bound: float) -> str:
        added = self.sensitivity.get(name, 0.0) * bound**2
        return f"adds {added / self._gradients:.1e} of the gradients' variance"

    def measured_errors(self) -> dict[str, tuple[float, float]]:
        """By consumer: the gradient's variance, predicted and measured in its last check."""
        return self.guard.measured

    # -- for checkpoints -----------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "next": self._next,
            "gradients": self._gradients,
            "shares": [list(pair) for pair in self._shares],
            "bounds": dict(self.bounds),
            "sensitivity": dict(self.sensitivity),
            "values": dict(self.values),
            "largest": dict(self._largest),
            "gates": self.gates.state_dict(),
            "reference": dict(self.reference.squares),
            "guard": self.guard.state_dict(),
            # Between an observed step and the next, what was seen is not yet learnt from.
            "observing": self._observing,
            "effects": [asdict(effect) for effect in self._effects],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step = state["step"]
        self._next = state.get("next", self._step + 1)
        self._gradients = state["gradients"]
        self._shares = [(int(order), float(share)) for order, share in state["shares"]]
        self.bounds = dict(state["bounds"])
        self.sensitivity = dict(state["sensitivity"])
        self.values = dict(state["values"])
        self._largest = dict(state["largest"])
        self.gates.load_state_dict(state.get("gates", {}))
        self.reference.squares = dict(state["reference"])
        self.guard.load_state_dict(state["guard"])
        self._observing = state.get("observing", False)
        self._effects = [Effect.of_state(one) for one in state.get("effects", [])]
