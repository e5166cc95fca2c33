"""The gradient that the optimizer will see, and when it has seen it.

A model may be called several times before the optimizer steps, with one backward pass or with
several. What the optimizer gets is the sum in `p.grad`, in which the calls' gradients may
cancel (a Wasserstein critic's do) or agree. An error is small or large beside that sum, not
beside any one of its terms.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from encke.tape.autograd.nodes import current_backward
from encke.tape.effects.squares import square

#: Forward passes after a backward pass without a step of an optimizer: then nobody steps it,
#: and each backward pass counts as a step.
_PATIENCE = 256


class StepBoundaries:
    """Tells which forward pass is the first after a step of the optimizer.

    Where no optimizer is known, a forward pass that comes after a backward pass is.

    known  whether an optimizer will tell that it has stepped
    """

    def __init__(self, *, known: bool = False) -> None:
        self._known = known
        self._stepped = True  # nothing is under way
        self._went_back = False
        self._without = 0

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has stepped since the last forward pass."""
        return self._stepped

    def stepped(self) -> None:
        """An optimizer has stepped."""
        self._stepped = self._known = True
        self._without = 0

    def went_back(self) -> None:
        """A backward pass ran since the last forward pass."""
        self._went_back = True

    def forward(self) -> bool:
        """A forward pass begins: whether it is the first of a step."""
        if self._went_back:
            self._without += 1
        told = self._known and self._without < _PATIENCE
        first = self._stepped or (self._went_back and not told)
        self._stepped = self._went_back = False
        return first

    def state_dict(self) -> dict[str, Any]:
        return {
            "known": self._known,
            "stepped": self._stepped,
            "went_back": self._went_back,
            "without": self._without,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._known, self._stepped = state["known"], state["stepped"]
        self._went_back, self._without = state["went_back"], state["without"]


class AccumulatedGradients:
    """‖p.grad‖² of each parameter after the last backward pass, while they are watched.

    squares  by the parameter's name

    >>> p = torch.nn.Parameter(torch.ones(4))
    >>> gradients = AccumulatedGradients()
    >>> gradients.watch({"p": p})
    >>> for sign in (1, -1):
    ...     (sign * p).sum().backward()
    >>> gradients.squares["p"]
    0.0
    """

    def __init__(self) -> None:
        self.squares: dict[str, float] = {}
        #: By name: the backward passes whose gradients are in p.grad, and p.grad as it was
        #: after the last of them: the tensor and its version.
        self._passes: dict[str, set[int]] = {}
        self._last: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._handles: list[Any] = []
        #: Told of parameters whose gradient was set to zero since the pass before.
        self.cleared: Callable[[str], None] | None = None
        #: The one backward pass that still counts, once the optimizer has stepped.
        self._only: int | None = None

    def watch(self, parameters: Mapping[str, Tensor]) -> None:
        """Forget what was seen, and look at the gradients of these from now on."""
        self.stop()
        self.squares.clear()
        self._passes.clear()
        self._last.clear()
        self._only = None
        for name, parameter in parameters.items():
            if parameter.requires_grad and parameter.is_leaf:
                hook = _Look(self, name)
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._handles.append(handle)

    def close(self) -> None:
        """The optimizer has stepped: what comes now is not what it saw.

        It may step in backward, parameter by parameter; then that pass goes on.
        """
        self._only = current_backward()

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def includes(self, name: str, backward: int) -> bool:
        """Whether what a backward pass found is in the gradient of a parameter.

        It is not where the gradient was set to zero since: the loss of a generator also
        reaches the weights of its critic, which are not trained by it.
        """
        passes = self._passes.get(name)
        return passes is None or backward in passes

    def see(self, name: str, gradient: Tensor) -> None:
        """`p.grad` of a parameter, after a backward pass has added to it."""
        now, version = current_backward(), gradient._version
        if self._only is not None and now != self._only:
            return
        before = self._last.get(name)
        # Adding in place makes one version; whatever makes more has changed what was there.
        goes_on = before is not None and before[0]() is gradient and version <= before[1] + 1
        passes = self._passes.setdefault(name, set())
        if not goes_on and not torch.is_grad_enabled():  # a graph of it is added out of place
            if passes and self.cleared is not None:
                self.cleared(name)
            passes.clear()
        passes.add(now)
        self._last[name] = weakref.ref(gradient), version
        self.squares[name] = square(gradient)

    def state_dict(self) -> dict[str, Any]:
        return {
            "squares": dict(self.squares),
            "passes": {name: sorted(passes) for name, passes in self._passes.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.squares = dict(state.get("squares", {}))
        self._passes = {name: set(found) for name, found in state.get("passes", {}).items()}


class _Look:
    """A hook on a parameter, which does not keep alive whoever looks."""

    __slots__ = ("_name", "_watcher")

    def __init__(self, watcher: AccumulatedGradients, name: str) -> None:
        self._watcher, self._name = weakref.ref(watcher), name

    def __call__(self, parameter: Tensor) -> None:
        watcher, gradient = self._watcher(), parameter.grad
        if watcher is not None and gradient is not None:
            watcher.see(self._name, gradient)
