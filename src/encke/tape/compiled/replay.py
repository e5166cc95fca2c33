"""Running a backward graph op by op, and beside it what errors in kept tensors would change.

A compiled graph has no layers to look at, and its code shows no gradient between beginning and
end. So the graph is run once more, one op after the other. A `Trial` starts where a kept tensor
is given back, with other values in its place, and repeats the ops that these values reach: up
to the gradients of weights that are computed from them, and up to the gradients that flow on
into the next product, the gradient of whose weight included. These are compared. How a relative
error goes on from there is known without running anything: products keep it, sums dilute it
(`Survey.onward`).

All trials together repeat about as many ops as the graph has, however many there are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from encke.tape.compiled import roles
from encke.tape.compiled.graphs import behind
from encke.tape.compiled.internals import op_name
from encke.tape.compiled.survey import Survey
from encke.tape.effects import products
from encke.tape.effects.squares import square

#: Arguments of `convolution_backward`.
_INPUT, _MASK = 1, 10


class Trial:
    """What other values of one kept tensor change in the gradients.

    instead  the values to take in place of those that are given back
    own      ‖Δ‖² in gradients of parameters that are computed from them, by their node
    stream   ‖Δ‖² / ‖·‖² in gradients that flow on, by their node
    """

    def __init__(self, instead: Callable[[Tensor], Tensor]) -> None:
        self.instead = instead
        self.own: dict[fx.Node, float] = {}
        self.stream: dict[fx.Node, float] = {}
        self.values: dict[fx.Node, Any] = {}

    def changes(self, replay: Replay) -> dict[str, float]:
        """‖Δ‖² in the gradient of each parameter."""
        found: dict[fx.Node, float] = dict(self.own)
        for start, relative in self.stream.items():
            ends = replay.onward(start) if relative > 0 else {}
            for end, share in ends.items():
                if end not in self.own:
                    change = relative * share * replay.random[end]
                    found[end] = max(found.get(end, 0.0), change)
        names: dict[str, float] = {}
        for node, change in found.items():
            name = replay.survey.ends[node]
            names[name] = names.get(name, 0.0) + change
        return names


class Replay(fx.Interpreter):
    """Runs a backward graph on what its handles give, and trials beside it.

    trials  by the number of the place whose tensor each replaces
    random  for each gradient of a parameter: how large it is if its summands have random signs,
            which is how errors add up, at most as large as it is
    shares  for each sum of gradients and each summand: ‖summand‖² / ‖sum‖²
    squares ‖·‖² of the results
    """

    def __init__(
        self, program: fx.GraphModule, survey: Survey, trials: Mapping[int, Sequence[Trial]]
    ) -> None:
        super().__init__(program)
        self.survey = survey
        self.random: dict[fx.Node, float] = {}
        self.shares: dict[tuple[fx.Node, fx.Node], float] = {}
        self.squares: dict[fx.Node, float] = {}
        self._onward: dict[fx.Node, dict[fx.Node, float]] = {}
        self._sums: dict[fx.Node, float] = {}
        self._trials = trials
        self._running: list[Trial] = []

    def onward(self, start: fx.Node) -> dict[fx.Node, float]:
        """How much of a gradient's relative error reaches which gradients of parameters."""
        if start not in self._onward:
            self._onward[start] = self.survey.onward(start, self.shares)
        return self._onward[start]

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and not _is_given(n):
            self._measure(n, value)
            for trial in self._running:
                if any(m in trial.values for m in n.all_input_nodes):
                    self._follow(trial, n, value)
        for done in self.user_to_last_uses.get(n, ()):
            for trial in self._running:
                trial.values.pop(done, None)
        self._running = [trial for trial in self._running if trial.values]
        self._begin(n, value)
        if isinstance(value, Tensor) and any(user.op == "output" for user in n.users):
            self.squares[n] = square(value)
            if len(n.users) == 1:  # that is all that is asked of a result
                return None
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        from encke.tape.compiled import operators

        if target is operators.tape_observe:
            return torch.zeros((), dtype=torch.float64)
        return super().call_function(target, args, kwargs)

    def _begin(self, n: fx.Node, value: Any) -> None:
        if not _is_given(n):
            return
        handle, *_ = self.fetch_args_kwargs_from_env(n)[0]
        for trial in self._trials.get(behind(handle).index, ()):
            trial.values[n] = trial.instead(value)
            if trial not in self._running:  # what is used twice may be given twice
                self._running.append(trial)

    def _follow(self, trial: Trial, n: fx.Node, value: Any) -> None:
        """Repeat an op for a trial, and compare where the trial ends."""
        stopped = all(m not in trial.values or m in trial.stream for m in n.all_input_nodes)
        if stopped and not self.survey.leads_to_weights(n):
            return
        other = self._again(trial, n, weight_alone=stopped)
        if other is None:
            return
        if n in self.survey.ends:
            trial.own[n] = square(other - value)
            return
        trial.values[n] = other
        if stopped:
            trial.stream[n] = 0.0  # counted where it was stopped
        elif n in self.survey.stops:
            change, whole = square(other - value), square(value)
            trial.stream[n] = change / whole if whole > 0 else float(change > 0)

    def _again(self, trial: Trial, n: fx.Node, *, weight_alone: bool) -> Any:
        target: Any = n.target
        given: Any = fx.node.map_arg((n.args, n.kwargs), lambda m: self._given(trial, m))
        args, kwargs = given
        if target is operator.getitem and args[0][args[1]] is None:
            return None
        if op_name(target) == "convolution_backward":
            # What flows on does not depend on the layer's input.
            changed = [i for i, m in enumerate(n.args) if m in trial.values]
            onward = not weight_alone and changed != [_INPUT]
            mask = [onward and args[_MASK][0], args[_MASK][1], False]
            args = (*args[:_MASK], mask, *args[_MASK + 1 :])
        return target(*args, **kwargs)

    def _given(self, trial: Trial, n: fx.Node) -> Any:
        return trial.values[n] if n in trial.values else self.env[n]

    def _measure(self, n: fx.Node, value: Any) -> None:
        results = [m for m in n.users if m.target is operator.getitem] or [n]
        ends = [m for m in results if m in self.survey.ends]
        if ends and n.target is not operator.getitem:
            self._sums |= dict.fromkeys(ends, self._random_sum(n))
        if n in self.survey.ends:
            self.random[n] = min(square(value), self._sums[n])
        for summand in self.survey.joins.get(n, ()):
            whole = square(value)
            if whole > 0:
                self.shares[n, summand] = square(self.env[summand]) / whole

    def _random_sum(self, product: fx.Node) -> float:
        """‖dW‖² if the products that it is the sum of had random signs."""
        given: Any = fx.node.map_arg(product.args, self.env.__getitem__)
        if roles.is_matrix_product(product):
            one, other = given[-2:]  # what comes before is added: addmm
            along: int = one.shape[-1] * math.prod(one.shape[:-2])
            return square(one) * square(other) / max(1, along)
        if op_name(product.target) == "convolution_backward":
            return _convolution(*given)
        added = self.survey.gradient_into(product)  # an embedding's, row by row
        return math.inf if added is None else square(self.env[added])


def _is_given(n: fx.Node) -> bool:
    """Whether a node is what was kept; what it waits for has no part in it."""
    return op_name(n.target) == "tape_give"


def _convolution(
    gradient: Tensor,
    seen: Tensor,
    weight: Tensor,
    _bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _output_padding: Any,
    groups: int,
    _mask: Any,
) -> float:
    spatial = weight.ndim - 2
    fan = products.convolution(
        weight=tuple(weight.shape),
        input_size=tuple(seen.shape[-spatial:]),
        output_size=tuple(gradient.shape[-spatial:]),
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=transposed,
        groups=groups,
    )
    return square(seen) / max(1, seen.numel()) * fan * square(gradient)
