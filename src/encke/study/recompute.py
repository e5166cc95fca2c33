"""Activation checkpointing of any network: what `torch.utils.checkpoint` users do by hand.

Residual blocks and transformer layers are recomputed one by one; a network without any, in
stretches of its longest sequences of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

_BLOCKS = ("Block", "Bottleneck", "Layer")
_LENGTH = 4  # layers of a stretch, at least


class Stretch:
    """A part of a network that keeps its input and is run again in backward.

    on      False runs it as if there were no checkpointing
    inside  entered around what it runs, both times; `note` is told its inputs
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.on = True
        self.inside: Callable[[], AbstractContextManager[object]] = nullcontext
        self.note: Callable[[Iterable[Any]], None] = lambda _: None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if not self.on:
            return self._call(*inputs, **named)
        self.note(inputs)
        return checkpoint(self._run, *inputs, use_reentrant=False, **named)

    def _run(self, *inputs: Any, **named: Any) -> Any:
        with self.inside():
            return self._call(*inputs, **named)


def recompute(network: nn.Module) -> list[Stretch]:
    """Make `network` recompute its stretches in backward; what it computes stays the same."""
    found = []
    for block in blocks(network):
        stretch = Stretch(block.forward)
        block.forward = stretch
        found.append(stretch)
    if found:
        return found
    for stack in network.modules():
        if isinstance(stack, nn.Sequential) and len(stack) > _LENGTH:
            stretches = [Stretch(nn.Sequential(*layers)) for layers in divide(list(stack))]
            stack.forward = _Chain(stretches)  # type: ignore[method-assign]
            found += stretches
    return found


@contextmanager
def without(stretches: Iterable[Stretch]) -> Iterator[None]:
    """Inside, nothing is recomputed."""
    stretches = list(stretches)
    for stretch in stretches:
        stretch.on = False
    try:
        yield
    finally:
        for stretch in stretches:
            stretch.on = True


def blocks(network: nn.Module) -> Iterator[nn.Module]:
    """The outermost residual blocks or transformer layers of a network."""
    for module in network.children():
        if type(module).__name__.endswith(_BLOCKS) and any(True for _ in module.children()):
            yield module
        else:
            yield from blocks(module)


def divide(layers: list[nn.Module]) -> Iterator[list[nn.Module]]:
    """Layers in stretches of at least four, none of which begins with an in-place layer.

    An in-place layer that begins a stretch would overwrite the stretch's input, which is what
    backward starts from again.

    >>> layers = [nn.Linear(2, 2), nn.Tanh(), nn.Tanh(), nn.Linear(2, 2), nn.ReLU(True)]
    >>> [len(stretch) for stretch in divide([*layers, *layers])]
    [5, 5]
    """
    begin = 0
    for end in range(1, len(layers) + 1):
        last = end == len(layers)
        if last or (end - begin >= _LENGTH and not getattr(layers[end], "inplace", False)):
            yield layers[begin:end]
            begin = end


class _Chain:
    def __init__(self, stretches: list[Stretch]) -> None:
        self._stretches = stretches

    def __call__(self, x: Tensor) -> Tensor:
        for stretch in self._stretches:
            x = stretch(x)
        return x
