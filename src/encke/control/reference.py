"""The scale that a gradient's error is measured against.

An error is harmless when it is small beside what training's own gradients do. What that is
can be read from the gradients themselves or from the optimizer:

gradient       ‖g‖², averaged over the last steps seen: signal and minibatch noise together
noise          ‖g‖² less the squared norm of the optimizer's running mean of g
step           (1 - β²) ‖m‖² of the momentum m = Σ βᵏ g, along which the optimizer steps. The
               errors of single gradients are independent, so in m they add up to 1/(1 - β²)
               of one: a tolerance of 0.01 then adds 1 % to the variance of the step. An
               optimizer that divides by the root of a mean of g², as Adam, also feels an
               error there, as a shorter step: for those it is the mean of ‖g‖², as `gradient`
momentum       ‖m‖²: as `step`, but in units of a single gradient's error, as COMET counts
magnitude      the number of weights times the squared mean of |m|: COMET's scale
second_moment  the sum of Adam's running mean of g²

Until an optimizer has state, and for parameters that it does not know, `gradient` stands in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from encke.errors import UnsupportedError

Kind = Literal["gradient", "noise", "step", "momentum", "magnitude", "second_moment"]
_MEMORY = 0.3  # of the running mean over refreshes, in logarithms: gradients shrink fast


class Reference:
    """‖·‖² to compare each parameter's gradient error with, by the parameter's name."""

    def __init__(
        self, kind: Kind = "gradient", optimizers: Iterable[torch.optim.Optimizer] = ()
    ) -> None:
        if kind not in get_args(Kind):
            raise UnsupportedError(
                f"reference is {kind!r}, allowed are {', '.join(get_args(Kind))}"
            )
        self.kind = kind
        self.optimizers = list(optimizers)
        self.squares: dict[str, float] = {}
        if kind != "gradient" and not self.optimizers:
            raise UnsupportedError(
                f"reference {kind!r} reads the optimizer's state: give attach the optimizer, "
                "or take reference='gradient'"
            )

    def see(self, name: str, square: float) -> None:
        """A gradient of parameter `name` had this squared norm."""
        old = self.squares.get(name, 0.0)
        if old > 0 and square > 0:
            square = old**_MEMORY * square ** (1 - _MEMORY)
        self.squares[name] = square

    def of(self, name: str, parameter: Tensor | None) -> float:
        """The reference of a parameter; zero while there is none."""
        seen = self.squares.get(name, 0.0)
        if self.kind == "gradient" or parameter is None:
            return seen
        state = self._state(parameter)
        if self.kind == "second_moment":
            return float(state["exp_avg_sq"].sum()) if "exp_avg_sq" in state else seen
        momentum, horizon = self._momentum(parameter, state)
        if momentum is None:
            return seen
        if self.kind == "magnitude":
            return float(momentum.numel() * momentum.abs().mean() ** 2) * horizon**2
        square = float(torch.linalg.vector_norm(momentum).double() ** 2) * horizon**2
        if self.kind in ("step", "momentum"):
            own = square if self.kind == "momentum" else square * self._apart(parameter)
            return seen if "exp_avg_sq" in state else max(own, seen)
        return max(seen - square * (1 - self._decay(parameter)) ** 2, 0.1 * seen)

    def _state(self, parameter: Tensor) -> dict[str, Any]:
        for optimizer in self.optimizers:
            if parameter in optimizer.state:
                return dict(optimizer.state[parameter])
        return {}

    def _momentum(
        self, parameter: Tensor, state: dict[str, Any]
    ) -> tuple[Tensor | None, float]:
        """A multiple of Σ βᵏ g that the optimizer has, and the factor that makes it that."""
        if state.get("exp_avg") is not None:  # Adam's is (1 - β) Σ βᵏ g
            return state["exp_avg"], 1 / (1 - self._decay(parameter))
        return state.get("momentum_buffer"), 1.0

    def _apart(self, parameter: Tensor) -> float:
        """The variance of a gradient of nothing but noise, of that of its momentum."""
        return 1.0 - self._decay(parameter) ** 2

    def _decay(self, parameter: Tensor) -> float:
        """β of the parameter's group."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if any(p is parameter for p in group["params"]):
                    betas = group.get("betas")
                    return float(betas[0] if betas is not None else group.get("momentum", 0))
        return 0.0
