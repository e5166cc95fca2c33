"""The controller: bounds as large as the gradients do not notice, tensor by tensor.

Every so often (`refresh`) one step is observed: for each kept tensor the tape reports what
an error of its size does to the gradients. From that follows a sensitivity for each tensor,
and from all of them, by water-filling, the bounds for the steps to come.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any, Literal
from zlib import crc32

import torch
from torch import nn

from encke.bound import Absolute, RmsRelative
from encke.bound.allocate import Demand, water_fill
from encke.control.accumulated import AccumulatedGradients, StepBoundaries
from encke.control.gates import Gates
from encke.control.guard import Guard
from encke.control.reference import Kind, Reference
from encke.control.sensitivity import gradient_squares, sensitivities
from encke.errors import UnsupportedError
from encke.tape.protocol import KEEP, Effect, Sight, Treatment
from encke.tape.squares import square

log = logging.getLogger("encke")

_CODECS = {"balance": "entropy", "ratio": "auto", "speed": "fixed"}
_MEMORY = 0.5  # of a sensitivity's running mean, in logarithms
_EARLY = 16  # steps in which the optimizer's state still forms: only the latest counts
_WARM_UP = 0.1  # of the root mean square: the bound of a tensor that was not observed yet
#: Ops after which that bound becomes smaller, since errors of all before it multiply in
#: backward: a recurrent network has thousands.
_DEEP = 128
_TURNS = 4  # observed steps in which every op that must be called again is so once
_MOST_CALLS = 4  # of the model in one optimizer step that are observed
_SECOND_ORDER_MEMORY = 100  # steps for which activations stay exact after the last such pass
_SECOND_ORDER = replace(KEEP, derive=False, why="its gradients are differentiated again")
_LARGEST = 4.0  # of a tensor's root mean square: beyond, every code is already zero


class Adaptive:
    """Keeps the variance that compression adds to the gradients below `tolerance`.

    tolerance  added variance, as a share of each gradient's own scale. Against `gradient`,
               0.01 is at most as much as a batch smaller by one per cent would add; against
               `step`, what `attach` takes where it has an optimizer, it is one per cent of
               the step that the optimizer takes
    reference  what that scale is: see `control.reference`
    refresh    steps between observations (more often at first: steps 1, 3, 6, 12, 24, …)
    guard      steps between comparisons with the true gradient; 0 for none
    prefer     "speed" takes fixed-length blocks: they are longer than entropy coding, which
               matters little beside a step's peak, and take less time; "balance"
               takes entropy coding, "ratio" tries every codec on each tensor now and then
               (prediction among them, which is slower)
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
        prefer: Literal["balance", "ratio", "speed"] = "speed",
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
        #: The same by the ops that use each tensor, which are not all observed at once.
        self._parts: dict[str, dict[str, float]] = {}
        self.values: dict[str, int] = {}
        self._largest: dict[str, float] = {}
        self.gates = Gates()
        self._effects: list[Effect] = []
        #: Optimizer steps, and calls of the model in the one that runs.
        self._step = self._calls = 0
        self._next = 1
        #: Whether this step is observed, whether this call is, and which calls were.
        self._due = self._observing = False
        self._observed: set[int] = set()
        #: Parameters that were seen to be trained.
        self._trained: set[str] = set()
        #: Steps observed so far: ops that have to be called again for it take turns.
        self._turn = 0
        self._exact_until = 0
        self._shares: list[tuple[int, float]] = []
        self._gradients = AccumulatedGradients()
        self._boundaries = StepBoundaries(known=bool(self.reference.optimizers))

    # -- the tape's questions ------------------------------------------------------------

    def backward_ran(self, *, create_graph: bool) -> None:
        self._boundaries.went_back()
        if create_graph:
            if self._exact_until == 0:
                log.warning(
                    "the gradients of this model are differentiated again (create_graph=True, "
                    "as for a gradient penalty, a Hessian or a PINN); what an error does to "
                    "second derivatives is not known, so activations are kept exact"
                )
            self._exact_until = self._step + _SECOND_ORDER_MEMORY

    def optimizer_stepped(self) -> None:
        """An optimizer that trains the model has stepped."""
        self._boundaries.stepped()
        self._gradients.close()

    def begin(self, step: int) -> None:
        if self._boundaries.forward():
            self._begin_step()
        self._calls += 1
        self._observing = self._due and self._calls <= _MOST_CALLS
        if self._observing:
            self._observed.add(step)
        self.guard.begin(self._step if self._calls == 1 else 0)

    def _begin_step(self) -> None:
        """The optimizer has stepped: learn from the step that ended, begin another."""
        if self._effects:
            self._learn()
        elif self.guard.changed():
            self._allocate()
        self._step += 1
        self._calls = 0
        self._observed.clear()
        self._due = self._step >= self._next
        if self._due:
            self._turn += 1
            # Steps 1, 3, 6, 12, 24, …
            apart = 2 if self._step == 1 else self._step
            self._next = self._step + min(apart, self.refresh)
            self._gradients.watch(self._parameters)
        else:
            self._gradients.stop()

    @property
    def is_observing(self) -> bool:
        """Whether the forward pass that runs is observed."""
        return self._observing

    def treat(self, sight: Sight) -> Treatment:
        name = str(sight.site)
        if self._step < self._exact_until:
            return _SECOND_ORDER
        if self.guard.distrusts(name):
            return KEEP
        bound = self.bounds.get(name)
        if self._observing:
            self._scale(name, sight)
        return Treatment(
            bound=_warm_up(sight.order) if bound is None else Absolute(bound),
            observe=self._observing or bound is None,
            probe=bound is None or self._is_its_turn(name),
            check=bound is not None and self.guard.checks(name),
            normalise=True,
            gate=self.gate and (self._observing or self.gates.is_open(name)),
            why="" if bound is None else self._why(name, bound),
            **self._options,  # type: ignore[arg-type]
        )

    def _is_its_turn(self, name: str) -> bool:
        """Whether ops are called again for a tensor in this step."""
        turns = 2 if self._step < _EARLY // 2 else _TURNS
        return (crc32(name.encode()) + self._turn) % turns == 0

    def observe(self, effect: Effect) -> None:
        self.guard.look_at_tail(effect)
        if effect.measured is not None:
            self.guard.judge(effect)
        if effect.call in self._observed or str(effect.site) not in self.bounds:
            self._effects.append(effect)

    # -- what follows from what was seen -------------------------------------------------

    def _scale(self, name: str, sight: Sight) -> None:
        if sight.channels:
            self._largest[name] = _LARGEST
            return
        norm = math.sqrt(square(sight.tensor))
        if math.isfinite(norm) and norm > 0:
            self._largest[name] = _LARGEST * norm / math.sqrt(sight.tensor.numel())

    def _learn(self) -> None:
        # A gradient that was set to zero before the optimizer stepped trains nothing.
        effects = [
            effect
            if self._gradients.includes(effect.parameter or "", effect.backward)
            else replace(effect, parameter=None)
            for effect in self._effects
        ]
        self._effects = []
        found = sensitivities(effects, self._scales(effects), shares=self._shares)
        if self._due or not self._shares:
            # Only a step that was observed as a whole tells what the network is made of.
            self._shares = list(found.shares)
        for name, gate in found.gates.items():
            self.gates.see(name, variance=gate.variance, blocked=gate.blocked)
        # Of many calls only the first are observed; the others are taken to be like them.
        calls = max(1.0, self._calls / max(1, len(self._observed)))
        for name, tensor in found.tensors.items():
            parts = self._parts.setdefault(name, {})
            for consumer, variance in tensor.parts.items():
                now, old = variance * calls, parts.get(consumer)
                if old is not None and old > now > 0 and self._step > _EARLY:
                    # Tightened at once, loosened by and by.
                    now = math.exp(_MEMORY * math.log(old) + (1 - _MEMORY) * math.log(now))
                parts[consumer] = now
            self.sensitivity[name] = sum(parts.values())
            self.values[name] = tensor.values
        self._allocate()

    def _scales(self, effects: list[Effect]) -> dict[str, float]:
        """What each parameter's error is relative to; those trained in this step only."""
        for name, seen in gradient_squares(effects, self._gradients.squares).items():
            self.reference.see(name, seen)
        scales = {
            name: self.reference.of(name, self._parameters.get(name))
            for name in {effect.parameter for effect in effects if effect.parameter}
        }
        self._trained |= scales.keys()
        return scales

    def _allocate(self) -> None:
        demands = {
            name: Demand(
                values=self.values[name],
                sensitivity=found * self.guard.caution(name),
                largest=self._largest.get(name, math.inf) * _reach(found),
            )
            for name, found in self.sensitivity.items()
            if math.isfinite(found)
        }
        variance = self.tolerance * max(1, len(self._trained))
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
        return f"adds {added / max(1, len(self._trained)):.1e} of the gradients' variance"

    def measured_errors(self) -> dict[str, tuple[float, float]]:
        """By consumer: the gradient's variance, predicted and measured in its last check."""
        return self.guard.measured

    # -- for checkpoints -----------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "calls": self._calls,
            "next": self._next,
            "trained": sorted(self._trained),
            "exact_until": self._exact_until,
            "shares": [list(pair) for pair in self._shares],
            "bounds": dict(self.bounds),
            "parts": {name: dict(parts) for name, parts in self._parts.items()},
            "turn": self._turn,
            "values": dict(self.values),
            "largest": dict(self._largest),
            "gates": self.gates.state_dict(),
            "reference": dict(self.reference.squares),
            "guard": self.guard.state_dict(),
            # Between an observed step and the next, what was seen is not yet learnt from.
            "due": self._due,
            "observing": self._observing,
            "observed": sorted(self._observed),
            "gradients": self._gradients.state_dict(),
            "boundaries": self._boundaries.state_dict(),
            "effects": [asdict(effect) for effect in self._effects],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step = state["step"]
        self._next = state.get("next", self._step + 1)
        self._calls = state["calls"]
        self._trained = set(state["trained"])
        self._exact_until = state["exact_until"]
        self._shares = [(int(order), float(share)) for order, share in state["shares"]]
        self.bounds = dict(state["bounds"])
        self._parts = {name: dict(parts) for name, parts in state["parts"].items()}
        self.sensitivity = {name: sum(p.values()) for name, p in self._parts.items()}
        self._turn = state["turn"]
        self.values = dict(state["values"])
        self._largest = dict(state["largest"])
        self.gates.load_state_dict(state.get("gates", {}))
        self.reference.squares = dict(state["reference"])
        self.guard.load_state_dict(state["guard"])
        self._due, self._observing = state["due"], state["observing"]
        self._observed = set(state["observed"])
        self._gradients.load_state_dict(state["gradients"])
        self._boundaries.load_state_dict(state["boundaries"])
        self._effects = [Effect.of_state(one) for one in state.get("effects", [])]


def _reach(sensitivity: float) -> float:
    """Of the largest bound: what a tensor may get. No effect seen is no proof of none."""
    return 1.0 if sensitivity > 0 else _WARM_UP / _LARGEST


def _warm_up(order: int) -> RmsRelative:
    """The bound of a tensor whose effect is not known yet, by its place in the forward pass."""
    return RmsRelative(_WARM_UP * min(1.0, _DEEP / max(order, 1)))
