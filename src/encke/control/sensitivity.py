"""From the effects of one optimizer step to a sensitivity for each tensor.

The sensitivity is the relative variance that a squared error of one adds to the gradients of
that step: of the gradients as the optimizer sees them, added up over all calls of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from encke.control.theory import signal_share
from encke.tape.policy import GradientEffect

#: Of the largest gradient of a single call: what the calls' sum is taken to be at least. Below
#: that the sum is rounding, and no bound would be small enough.
_SMALLEST_SUM = 1e-4


class Share(NamedTuple):
    """How much of a relative error of dY arrives in a parameter's gradient.

    order  place in the forward pass of the op that the parameter belongs to
    """

    order: int
    share: float
    parameter: str


Shares = Sequence[Share]


class Part(NamedTuple):
    """Variance that an error of ±1 in a tensor adds through one op that uses it.

    own        in the gradient of that op's own parameter
    flow       in those of all ops before it, through the gradient that it passes on
    order      place of the op in the forward pass
    """

    own: float
    flow: float
    parameter: str | None
    order: int

    def smoothed(self, before: Part, memory: float) -> Part:
        """Larger at once, smaller by and by."""
        own, flow = (
            old**memory * now ** (1 - memory) if old > now > 0 else now
            for old, now in ((before.own, self.own), (before.flow, self.flow))
        )
        return self._replace(own=own, flow=flow)


@dataclass(slots=True)
class Sensitivity:
    """Of one tensor, over all calls.

    parts   by the op that uses the tensor
    values  that carry the error
    """

    parts: dict[str, Part] = field(default_factory=dict)
    values: int = 0


@dataclass(frozen=True, slots=True)
class Gate:
    """What the gate of a norm left out of the gradients, over all calls."""

    variance: float
    blocked: int


@dataclass(slots=True)
class Found:
    """What the effects of a step say.

    tensors  by the name of the tensor's place
    gates    by the name of the norm's
    shares   of the call that has the most
    """

    tensors: dict[str, Sensitivity] = field(default_factory=dict)
    gates: dict[str, Gate] = field(default_factory=dict)
    shares: Shares = ()


def gradient_squares(
    effects: Iterable[GradientEffect], accumulated: Mapping[str, float]
) -> dict[str, float]:
    """By parameter: ‖g‖² of the sum over calls where that is known, else the largest call's.

    >>> gradient_squares([], {"weight": 2.0})
    {}
    """
    largest: dict[str, float] = {}
    for effect in effects:
        name = effect.parameter
        if name:
            largest[name] = max(largest.get(name, 0.0), effect.parameter_square)
    return {
        name: max(accumulated.get(name, square), _SMALLEST_SUM * square)
        for name, square in largest.items()
    }


def sensitivities(
    effects: Sequence[GradientEffect], scales: Mapping[str, float], *, shares: Shares
) -> Found:
    """Add up what the effects of a step say.

    scales  what each parameter's error is relative to. A parameter that is not among them is
            not trained by this step: errors in its gradient do not matter
    shares  for calls that were not observed as a whole
    """
    found = Found(shares=shares)
    by_call = _shares_by_call(effects, scales)
    if by_call:
        found.shares = max(by_call.values(), key=len)
    uses: Counter[tuple[str, str]] = Counter()
    for effect in effects:
        if effect.error <= 0:
            continue
        upstream = sum(
            one.share for one in by_call.get(effect.call, shares) if one.order < effect.order
        )
        consumer = str(effect.consumer)
        if effect.left_out > 0:
            before = found.gates.get(consumer, Gate(0.0, 0))
            found.gates[consumer] = Gate(
                before.variance + effect.left_out * max(upstream, 1.0),
                before.blocked + effect.blocked,
            )
        scale = scales.get(effect.parameter or "", 0.0)
        own = effect.predicted / scale if scale > 0 else 0.0
        flow = effect.stream * max(upstream, 1.0)
        name = str(effect.site)
        uses[name, consumer] += 1
        tensor = found.tensors.setdefault(name, Sensitivity())
        others = tensor.parts.get(consumer)
        tensor.parts[consumer] = Part(
            own / effect.error**2 + (others.own if others else 0.0),
            flow / effect.error**2 + (others.flow if others else 0.0),
            effect.parameter,
            effect.order,
        )
        # Once for each call, however many ops use the tensor in it.
        tensor.values = max(tensor.values, uses[name, consumer] * effect.values)
    return found


def _shares_by_call(
    effects: Iterable[GradientEffect], scales: Mapping[str, float]
) -> dict[int, Shares]:
    """The shares of each call's products with trained weights.

    Where the gradients of several calls cancel, an error is larger beside their sum than
    beside its own call's gradient.
    """
    found: dict[int, set[Share]] = {}
    for effect in effects:
        scale = scales.get(effect.parameter or "", 0.0)
        if effect.products and effect.parameter_square > 0 and scale > 0:
            share = signal_share(effect) * max(1.0, effect.parameter_square / scale)
            one = Share(effect.order, share, effect.parameter or "")
            found.setdefault(effect.call, set()).add(one)
    return {call: sorted(shares) for call, shares in found.items()}
