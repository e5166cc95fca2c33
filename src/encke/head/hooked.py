"""Functions of autograd that take a tensor as a place in its graph: hooks and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from encke.head.lazy_gradient import LazyGradient, values_of

if TYPE_CHECKING:
    from encke.head.lazy import LazyLogits


def _place(t: Any) -> Any:
    """The tensor that a gradient or a hook is meant for.

    Where a loss was computed without values, its gradient arrives at the lazy tensor. Otherwise
    it arrives at the ordinary one, also after a change in place.
    """
    from encke.head.lazy import LazyLogits

    if not isinstance(t, LazyLogits) or t.fused:
        return t
    return t.compute()


def _register_hook(lazy: LazyLogits, hook: Any) -> Any:
    place = _place(lazy)
    if place is not lazy:
        return place.register_hook(hook)

    def with_values(gradient: Tensor) -> Any:
        return hook(gradient.value() if isinstance(gradient, LazyGradient) else gradient)

    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.register_hook(lazy, with_values)  # type: ignore[no-untyped-call]


def _retain_grad(lazy: LazyLogits) -> None:
    place = _place(lazy)
    if place is not lazy:
        place.retain_grad()
        return

    def retain(gradient: Tensor) -> None:
        lazy.retained = gradient if lazy.retained is None else lazy.retained + gradient

    _register_hook(lazy, retain)


def _grad(lazy: LazyLogits) -> Tensor | None:
    if lazy.retained is not None or lazy.ordinary is None:
        return lazy.retained
    return lazy.ordinary.grad


def _autograd_grad(outputs: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
    from encke.head.lazy import computed

    inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
    outputs, rest, options = computed((outputs, rest, options))
    with torch._C.DisableTorchFunctionSubclass():
        found = torch.autograd.grad(outputs, [_place(t) for t in inputs], *rest, **options)
    return tuple(values_of(list(found)))


#: What is called for each. `Tensor.grad` is asked for like a function.
FUNCTIONS: dict[Any, Any] = {
    Tensor.register_hook: _register_hook,
    Tensor.retain_grad: _retain_grad,
    getattr(Tensor, "grad").__get__: _grad,  # noqa: B009
    torch.autograd.grad: _autograd_grad,
}


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of one of `FUNCTIONS`."""
    return FUNCTIONS[func](*args, **kwargs)
