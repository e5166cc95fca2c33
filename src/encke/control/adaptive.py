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

from encke.bound import Absolute, Bound, RmsRelative
from encke.bound.allocate import Demand, water_fill
from encke.control.accumulated import AccumulatedGradients, StepBoundaries
from encke.control.calibrate import Calibration, Upstream, mean_variance
from encke.control.drift import GradientDrift
from encke.control.gates import Gates
from encke.control.guard import Guard
from encke.control.reference import Kind, Reference
from encke.control.sensitivity import Part, Share, gradient_squares, sensitivities
from encke.errors import UnsupportedError
from encke.tape.effects.backward_again import BackwardAgain
from encke.tape.effects.gradient_samples import GradientError
from encke.tape.effects.squares import square
from encke.tape.policy import KEEP, GradientEffect, SavedTensor, Site, StorageDecision

log = logging.getLogger("encke")

_CODECS = {"balance": "entropy", "ratio": "auto", "speed": "fixed"}
_MEMORY = 0.5  # of a sensitivity's running mean, in logarithms
_EARLY = 16  # steps in which the optimizer's state still forms: only the latest counts
#: Of the root mean square: the bound of a tensor that was not observed yet; less where the
#: tolerance is below this.
_WARM_UP = 0.1
_WARM_UP_TOLERANCE = 0.01
#: Ops after which that bound becomes smaller, since errors of all before it multiply in
#: backward: a recurrent network has thousands.
_DEEP = 128
_TURNS = 4  # observed steps in which every op that must be called again is so once
_MOST_CALLS = 4  # of the model in one optimizer step that are observed
_SECOND_ORDER_MEMORY = 100  # steps for which activations stay exact after the last such pass
_SECOND_ORDER = replace(KEEP, derive=False, why="its gradients are differentiated again")
_TRIES_GATES = 8  # observed steps: in the first of these all gates are open
#: Observed steps, counted from 1, after which nothing is measured: there are many at first.
_UNMEASURED = (2,)
_GATES_EVERY = 3  # measured steps: in the first of these what gates leave out is measured too
_ROUNDS = 8  # in which a sum of weighted variances is brought to a given one
_NEAR = 0.02
_STEEPEST = 64.0
_LARGEST = 4.0  # of a tensor's root mean square: beyond, every code is already zero


class Adaptive:
    """Keeps the variance that compression adds to the gradients below `tolerance`.

    tolerance  added variance, as a share of each gradient's own scale. Against `gradient`,
               0.01 is at most as much as a batch smaller by one per cent would add; against
               `step`, what `attach` takes where it has an optimizer, it is one per cent of
               the step that the optimizer takes
    reference  what that scale is: see `control.reference`
    refresh    steps between observations (more often at first: steps 1, 3, 9, 27, …)
    guard      steps between comparisons with the true gradient; 0 for none
    prefer     "speed" takes fixed-length blocks: they are longer than entropy coding, which
               matters little beside a step's peak, and take less time; "balance"
               takes entropy coding, "ratio" tries every codec on each tensor now and then
               (prediction among them, which is slower)
    gate       whether a batch norm's input is kept only where the ReLU behind it passes
    residual   whether the last norm's input of a residual block may follow from the block's
               output: fewer bytes, but no lower peak, and single weights get larger errors
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
        residual: bool = False,
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
        self._options["residual"] = residual
        self._parameters = dict(model.named_parameters()) if model is not None else {}
        self.gate = gate
        self.bounds: dict[str, float] = {}
        self.sensitivity: dict[str, float] = {}
        #: The same by the ops that use each tensor, which are not all observed at once.
        self._parts: dict[str, dict[str, Part]] = {}
        self.values: dict[str, int] = {}
        self._largest: dict[str, float] = {}
        #: Tensors whose bounds are for normalised values.
        self._normalised: set[str] = set()
        self.gates = Gates()
        self._effects: list[GradientEffect] = []
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
        #: Answers that hold until something is learnt.
        self._treatments: dict[Site, StorageDecision] = {}
        self._shares: list[Share] = []
        self._gradients = AccumulatedGradients()
        self._boundaries = StepBoundaries(known=bool(self.reference.optimizers))
        #: What all errors do together, measured in the steps after observed ones.
        self.backward_again = BackwardAgain()
        self._gradients.cleared = self.backward_again.forget_before
        self.calibration = Calibration()
        self._measurements = 0
        self.drift = GradientDrift()

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
            self._treatments.clear()

    def optimizer_stepped(self) -> None:
        """An optimizer that trains the model has stepped."""
        if not self._boundaries.has_stepped:
            self.drift.see(self._parameters.values(), self._step)
        self._boundaries.stepped()
        self._gradients.close()
        self.backward_again.close()

    def begin(self, step: int) -> None:
        if self._boundaries.forward():
            self._begin_step()
        self._calls += 1
        self._observing = self._due and self._calls <= _MOST_CALLS
        if self._observing:
            self._observed.add(step)
        self.guard.begin(self._step if self._calls == 1 else 0)
        if self._observing or self.guard.is_checking:
            self._treatments.clear()

    def _begin_step(self) -> None:
        """The optimizer has stepped: learn from the step that ended, begin another."""
        measured = self.backward_again.finish()
        if measured:
            self._calibrate(measured)
        if self._effects:
            self._learn()
        elif self.guard.changed() or measured:
            self._allocate()
        self._step += 1
        self._calls = 0
        self._observed.clear()
        wanted = (self._due and self._turn not in _UNMEASURED) or self.drift.asks(
            self._step, measurements=self._measurements
        )
        if wanted and self.bounds and self._step >= self._exact_until:
            self._measurements += 1
            gates = self.gates.any_open and self._measurements % _GATES_EVERY == 1
            self.backward_again.begin(self._parameters, seed=self._step, gates=gates)
        self._due = self._step >= self._next and not self.backward_again.is_on
        if self.backward_again.is_on:
            self._gradients.watch(self._parameters)
        if self._due:
            self._turn += 1
            # Steps 1, 3, 9, 27, …
            self._next = self._step + min(2 * self._step, self.refresh)
            self._gradients.watch(self._parameters)
        elif not self.backward_again.is_on:
            self._gradients.stop()

    @property
    def is_observing(self) -> bool:
        """Whether the forward pass that runs is observed, or its gradients measured."""
        return self._observing or self.backward_again.is_on

    def treat(self, sight: SavedTensor) -> StorageDecision:
        known = self._treatments.get(sight.site)
        if known is not None:
            return known
        found = self._treat(sight)
        lasts = not (found.observe or found.check or self._step < self._exact_until)
        if lasts and not self.guard.is_checking:
            self._treatments[sight.site] = found
        return found

    def _treat(self, sight: SavedTensor) -> StorageDecision:
        name = str(sight.site)
        if self._step < self._exact_until:
            return _SECOND_ORDER
        if self.guard.distrusts(name):
            return KEEP
        bound = self.bounds.get(name)
        if self._observing:
            self._scale(name, sight)
        return StorageDecision(
            bound=self._warm_up(sight) if bound is None else Absolute(bound),
            observe=self._observing or bound is None,
            probe=bound is None or self._is_its_turn(name),
            check=bound is not None and self.guard.checks(name),
            normalise=True,
            gate=self.gate and (self._tries_gates or self.gates.is_open(name)),
            why="" if bound is None else self._why(name, bound),
            **self._options,  # type: ignore[arg-type]
        )

    def _warm_up(self, sight: SavedTensor) -> Bound:
        """The bound of a tensor whose effect is not known."""
        share = min(1.0, math.sqrt(self.tolerance / _WARM_UP_TOLERANCE))
        unknown = _WARM_UP * share * min(1.0, _DEEP / max(sight.order, 1))
        if sight.channels:  # all normalised values have one scale: as small as most others
            known = sorted(self.bounds[n] for n in self._normalised & self.bounds.keys())
            if known:
                return Absolute(min(unknown, known[len(known) // 4]))
        return RmsRelative(unknown)

    @property
    def _tries_gates(self) -> bool:
        """Whether closed gates are open in this step, to see what they leave out now."""
        return self._observing and self._turn % _TRIES_GATES == 1

    def _is_its_turn(self, name: str) -> bool:
        """Whether ops are called again for a tensor in this step."""
        turns = 2 if self._turn <= 2 else _TURNS
        return (crc32(name.encode()) + self._turn) % turns == 0

    def observe(self, effect: GradientEffect) -> None:
        self._treatments.clear()
        self.guard.look_at_tail(effect)
        if effect.measured is not None:
            self.guard.judge(effect)
        if effect.call in self._observed or str(effect.site) not in self.bounds:
            self._effects.append(effect)

    # -- what follows from what was seen -------------------------------------------------

    def _scale(self, name: str, sight: SavedTensor) -> None:
        if sight.channels:
            self._largest[name] = _LARGEST
            self._normalised.add(name)
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
            for consumer, part in tensor.parts.items():
                now = part._replace(own=part.own * calls, flow=part.flow * calls)
                old = parts.get(consumer)
                if old is not None and self._step > _EARLY:
                    now = now.smoothed(old, _MEMORY)
                parts[consumer] = now
            self.values[name] = tensor.values
        self._allocate()

    def _scales(self, effects: list[GradientEffect]) -> dict[str, float]:
        """What each parameter's error is relative to; those trained in this step only."""
        for name, seen in gradient_squares(effects, self._gradients.squares).items():
            self.reference.see(name, seen)
        scales = {
            name: self.reference.of(name, self._parameters.get(name))
            for name in {effect.parameter for effect in effects if effect.parameter}
        }
        self._trained |= scales.keys()
        return scales

    def _calibrate(self, measured: dict[str, GradientError]) -> None:
        """Hold the prediction for the bounds of the step that ended to what was measured."""
        self.drift.measured(self._step)
        for name, found in measured.items():
            self.reference.see(name, found.square)
        scales = {n: self.reference.of(n, self._parameters.get(n)) for n in measured}
        predicted = mean_variance(self.bounds, self._plain_sensitivity(), len(self._trained))
        self.calibration.see(
            measured,
            scales,
            self._parameters,
            tolerance=self.tolerance,
            predicted=predicted,
            early=self._step <= _EARLY,
        )
        if self._measurements % _GATES_EVERY == 1:
            left_out = {
                name: found.left_out / scales[name]
                for name, found in measured.items()
                if found.left_out is not None
                and scales[name] > 0
                and self._parameters[name].ndim > 1
            }
            self.gates.measured(left_out, len(self._trained))

    def _plain_sensitivity(self) -> dict[str, float]:
        """By tensor: the variance that an error of ±1 adds, every parameter alike."""
        return {
            name: sum(part.own + part.flow for part in parts.values())
            for name, parts in self._parts.items()
        }

    def _allocate(self) -> None:
        self._treatments.clear()
        upstream = Upstream(self._shares, self.calibration.weights)
        self.sensitivity = {
            name: self.calibration.sensitivity(parts.values(), upstream)
            for name, parts in self._parts.items()
        }
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
            for name, bound in self._fill(demands, variance).items()
            if 0 < bound < math.inf
        }

    def _fill(self, demands: dict[str, Demand], variance: float) -> dict[str, float]:
        """Bounds shared out by weight, whose calibrated sum without weights is `variance`."""
        plain = self._plain_sensitivity()
        cautious = {name: found * self.guard.caution(name) for name, found in plain.items()}
        allowed = variance / self.calibration.factor
        given = allowed
        bounds: dict[str, float] = {}
        for _ in range(_ROUNDS):
            bounds = water_fill(demands, variance=given)
            added = mean_variance(bounds, cautious, 1)
            if added <= 0 or abs(added - allowed) <= _NEAR * allowed:
                break
            given *= min(allowed / added, _STEEPEST)
        return bounds

    def _why(self, name: str, bound: float) -> str:
        added = self.sensitivity.get(name, 0.0) * bound**2
        return f"adds {added / max(1, len(self._trained)):.1e} of the gradients' variance"

    def measured_errors(self) -> dict[str, tuple[float, float]]:
        """By consumer: the gradient's variance, predicted and measured in its last check."""
        return self.guard.measured

    def told(self) -> dict[str, Any]:
        """The gradients' relative error: asked for, predicted, measured last, the largest.

        The price is how many times tighter bounds are than without measurements.
        """
        found, count = self.calibration, len(self._trained)
        name, worst = found.worst or ("", None)
        left_out = self.gates.variance / max(1, count)
        predicted = mean_variance(self.bounds, self._plain_sensitivity(), count)
        return {
            "asked": self.tolerance,
            "predicted": predicted * found.factor + left_out,
            "measured": None if found.measured is None else found.measured + left_out,
            "worst": worst,
            "parameter": name,
            "price": math.sqrt(found.factor),
            "why_not": self.backward_again.reason,
        }

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
            "parts": {
                name: {consumer: list(part) for consumer, part in parts.items()}
                for name, parts in self._parts.items()
            },
            "calibration": self.calibration.state_dict(),
            "measurements": self._measurements,
            "twice": self.backward_again.twice,
            "drift": self.drift.state_dict(),
            "turn": self._turn,
            "values": dict(self.values),
            "largest": dict(self._largest),
            "normalised": sorted(self._normalised),
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
        self._treatments.clear()
        self._step = state["step"]
        self._next = state.get("next", self._step + 1)
        self._calls = state["calls"]
        self._trained = set(state["trained"])
        self._exact_until = state["exact_until"]
        self._shares = [Share(*one) for one in state["shares"]]
        self.bounds = dict(state["bounds"])
        self._parts = {
            name: {consumer: Part(*part) for consumer, part in parts.items()}
            for name, parts in state["parts"].items()
        }
        self.calibration.load_state_dict(state.get("calibration", {}))
        self._measurements = state.get("measurements", 0)
        self.backward_again.twice = state.get("twice", False)
        self.drift.load_state_dict(state.get("drift", {}))
        upstream = Upstream(self._shares, self.calibration.weights)
        self.sensitivity = {
            name: self.calibration.sensitivity(parts.values(), upstream)
            for name, parts in self._parts.items()
        }
        self._turn = state["turn"]
        self.values = dict(state["values"])
        self._largest = dict(state["largest"])
        self._normalised = set(state.get("normalised", ()))
        self.gates.load_state_dict(state.get("gates", {}))
        self.reference.squares = dict(state["reference"])
        self.guard.load_state_dict(state["guard"])
        self._due, self._observing = state["due"], state["observing"]
        self._observed = set(state["observed"])
        self._gradients.load_state_dict(state["gradients"])
        self._boundaries.load_state_dict(state["boundaries"])
        self._effects = [GradientEffect.of_state(one) for one in state.get("effects", [])]


def _reach(sensitivity: float) -> float:
    """Of the largest bound: what a tensor may get. No effect seen is no proof of none."""
    return 1.0 if sensitivity > 0 else _WARM_UP / _LARGEST
