"""The ways to train that are compared: plain, what torch offers, published rules, Encke."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import encke
from encke.tape.protocol import KEEP, Effect, Sight, Treatment


class Count:
    """A policy that keeps everything as it is: the tape then only counts bytes."""

    def begin(self, step: int) -> None: ...

    def treat(self, sight: Sight) -> Treatment:
        return KEEP

    def observe(self, effect: Effect) -> None: ...

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None: ...


@dataclass
class Set:
    """A network set up in one way.

    around  entered around the forward pass
    tape    the tape, where there is one
    """

    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    tape: encke.Tape | None = None


Way = Callable[[nn.Module, torch.optim.Optimizer], Set]


def _plain(_net: nn.Module, _optimizer: torch.optim.Optimizer) -> Set:
    return Set()


def _bf16(_net: nn.Module, _optimizer: torch.optim.Optimizer) -> Set:
    return Set(around=lambda: torch.autocast("cpu", torch.bfloat16))


def _save_on_cpu(_net: nn.Module, _optimizer: torch.optim.Optimizer) -> Set:
    return Set(around=torch.autograd.graph.save_on_cpu)


def _checkpoint(net: nn.Module, _optimizer: torch.optim.Optimizer) -> Set:
    """Checkpoint each block; networks without blocks, stretches of four layers."""
    found = list(blocks(net))
    for block in found:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    if not found:
        for stack in (m for m in net.modules() if isinstance(m, nn.Sequential) and len(m) > 4):
            stack.forward = functools.partial(_in_stretches, stack)  # type: ignore[method-assign]
    return Set()


def _in_stretches(stack: nn.Sequential, x: torch.Tensor, length: int = 4) -> torch.Tensor:
    layers = list(stack)
    for start in range(0, len(layers), length):
        stretch = nn.Sequential(*layers[start : start + length])
        x = checkpoint(stretch, x, use_reentrant=False)
    return x


def blocks(net: nn.Module) -> Iterator[nn.Module]:
    """The residual blocks or transformer layers of a network."""
    for module in net.modules():
        if type(module).__name__.endswith(("Block", "Bottleneck", "Layer")) and any(
            True for _ in module.children()
        ):
            yield module


def _with(make: Callable[[nn.Module, torch.optim.Optimizer], object]) -> Way:
    def way(net: nn.Module, optimizer: torch.optim.Optimizer) -> Set:
        return Set(tape=encke.attach(net, policy=make(net, optimizer)))  # type: ignore[arg-type]

    return way


def _encke(**options: object) -> Way:
    def way(net: nn.Module, optimizer: torch.optim.Optimizer) -> Set:
        return Set(tape=encke.attach(net, optimizer, **options))  # type: ignore[arg-type]

    return way


WAYS: dict[str, Way] = {
    "plain": _plain,
    "bf16": _bf16,
    "checkpoint": _checkpoint,
    "save_on_cpu": _save_on_cpu,
    "group 4 bits": _with(lambda _n, _o: encke.GroupBits(4, adaptive=False)),
    "group 2 bits": _with(lambda _n, _o: encke.GroupBits(2, adaptive=False)),
    "ActNN/GACT rule, 2 bits": _with(lambda _n, _o: encke.GroupBits(2)),
    "fixed 2%": _with(
        lambda _n, _o: encke.Fixed(encke.RangeRelative(0.02), codec="entropy", dither=False)
    ),
    "fixed 10%, dithered": _with(
        lambda _n, _o: encke.Fixed(encke.RangeRelative(0.1), codec="entropy")
    ),
    "COMET": _with(lambda n, o: encke.Comet(optimizers=[o], model=n)),
    "Encke": _encke(),
    "Encke, ratio": _encke(prefer="ratio"),
}


def counted(net: nn.Module) -> encke.Tape:
    """A tape that changes nothing and counts what plain autograd keeps."""
    return encke.attach(net, policy=Count())
