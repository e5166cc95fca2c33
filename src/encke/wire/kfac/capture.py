"""Sees what goes through each unit, forward and backward, and adds it to the unit's factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from encke.wire.kfac import attention
from encke.wire.kfac.cover import Place
from encke.wire.kfac.factors import Factors


@dataclass(frozen=True, kw_only=True)
class Use:
    """One call of a layer: what went in, and the edge along which its output's gradient comes.

    An edge, not the output itself: a ReLU in place would otherwise have changed what is meant.
    """

    place: Place
    input: Tensor
    edge: GradientEdge


class _Hook:
    """A forward hook that a copy of the model does not take along."""

    def __init__(self, told: Callable[[Any, Any, Any, Any], None] | None) -> None:
        self._told = told

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._told is not None:
            self._told(module, args, kwargs, output)

    def __reduce__(self) -> tuple[type[_Hook], tuple[None]]:
        return _Hook, (None,)


class Capture:
    """Hooks on every place of a cover.

    In the `sampled` way, uses are collected while `active` and `take` asks autograd for their
    gradients. In the `empirical` way, the user's own backward brings them: each output gets a
    hook.
    """

    def __init__(
        self, model: nn.Module, places: Sequence[Place], factors: Factors, *, sampled: bool
    ) -> None:
        self._factors = factors
        self._sampled = sampled
        self._uses: list[Use] = []
        self._handles: list[RemovableHandle] = []
        self._attention: list[nn.MultiheadAttention] = []
        self.active = False
        #: What an output's gradient is multiplied with to become that of the summed loss.
        self.scale: Callable[[], float] = lambda: 1.0
        #: Told at each forward of the model how many examples it has.
        self.on_forward: Callable[[int], None] | None = None
        parts: dict[nn.Module, dict[str, Place]] = {}
        for place in places:
            parts.setdefault(place.module, {})[place.part] = place
        for module, named in parts.items():
            if isinstance(module, nn.MultiheadAttention):
                attention.watch(module, partial(self._watcher, module, named))
                self._attention.append(module)
            else:
                hook = _Hook(partial(self._see, named[""]))
                self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
        self._handles.append(
            model.register_forward_hook(_Hook(self._forwarded), with_kwargs=True)
        )

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
        for module in self._attention:
            attention.release(module)
        self.forget()

    def forget(self) -> None:
        """Drop uses that nobody has asked about."""
        self._uses.clear()

    def _watching(self, module: nn.Module) -> bool:
        return self.active and module.training and torch.is_grad_enabled()

    def _watcher(self, module: nn.Module, named: dict[str, Place]) -> attention.Watcher | None:
        if not self._watching(module):
            return None

        def watcher(part: str, x: Tensor, y: Tensor) -> None:
            if part in named:
                self._use(named[part], x, y)

        return watcher

    def _see(
        self, place: Place, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        if self._watching(module):
            self._use(place, args[0] if args else kwargs["input"], output)

    def _forwarded(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.on_forward is None or not self._watching(module):
            return
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor) and value.dim():
                self.on_forward(len(value))
                return

    def _use(self, place: Place, x: Tensor, y: Tensor) -> None:
        if not y.requires_grad:
            return
        if self._sampled:
            self._uses.append(Use(place=place, input=x.detach(), edge=get_gradient_edge(y)))
            return

        def arrived(gradient: Tensor) -> None:
            self._add(place, kept, gradient, scale=self.scale())

        kept = x.detach()
        y.register_hook(arrived)  # type: ignore[no-untyped-call]

    def take(self, loss: Tensor, *, retain: bool) -> int:
        """Differentiate a sampled loss, summed over its terms; how many uses it reached."""
        uses, self._uses = self._uses, []
        if not uses:
            return 0
        self.active, was = False, self.active  # checkpointing runs forward again in here
        try:
            gradients = torch.autograd.grad(
                loss, [use.edge for use in uses], retain_graph=retain, allow_unused=True
            )
        finally:
            self.active = was
        reached = 0
        for use, gradient in zip(uses, gradients, strict=True):
            if gradient is not None:
                self._add(use.place, use.input, gradient)
                reached += 1
        return reached

    def _add(self, place: Place, x: Tensor, gradient: Tensor, *, scale: float = 1.0) -> None:
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            self._factors.add(place.unit, place.read(x, gradient), scale=scale)
