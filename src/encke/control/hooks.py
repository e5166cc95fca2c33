"""The hooks by which a model's calls enter its tape.

The root of the model has two hooks. Its parts have them too until the root is first called with
gradients on: a model whose loss is computed in a method (`model.loss(x)`) calls its parts and
never itself. If a part is called outside of a call of the root, the tape is entered for that
call, and what was computed since the part before it is taken over as well.

The hooks are the model's only trace of its tape: `control/hidden.py` keeps them out of copies,
files and TorchScript.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from encke.control import hidden
from encke.tape import Tape
from encke.tape.autograd.nodes import is_exported, is_traced
from encke.tape.compiled import announce, announce_if_loaded
from encke.tape.compiled.internals import at_trace_time

if TYPE_CHECKING:
    from encke.control.optimizers import OptimizerSteps

#: Modules that send gradients to other ranks while backward runs.
_WRAPPERS = frozenset(["DistributedDataParallel", "FullyShardedDataParallel"])

#: Those of every model that has a tape now. Only the models hold them.
attached: weakref.WeakSet[ModelHooks] = weakref.WeakSet()


def hooks_of(model: nn.Module) -> ModelHooks | None:
    """The hooks of a model that has a tape; None if it has none."""
    for hook in model._forward_pre_hooks.values():
        if isinstance(hook, _EnterRoot):
            return hook.hooks
    return None


class ModelHooks:
    """The hooks of one model and its tape, until `remove`."""

    def __init__(self, model: nn.Module, tape: Tape) -> None:
        self.tape = tape
        self._model = weakref.ref(model)
        self._parts: list[Callable[[], None]] = []
        self._calls: list[_PartCall] = []
        #: Calls of the root with gradients on, and who is told their number after each.
        self.root_calls = 0
        self.listeners: list[Callable[[int], None]] = []
        #: Who is told what each call that the tape was entered for has given.
        self.ended: list[Callable[[Any], None]] = []
        #: Whether a warning has said that the tape has little or no effect.
        self.warned = False
        #: What the optimizers of the model do, if somebody follows them.
        self.steps: OptimizerSteps | None = None
        #: Whether the hooks of parts must stay: a part was called with gradients on outside of
        #: a call of the root, or compiled code refers to them.
        self.parts_needed = False
        #: Whether torch.compile has traced a model with a tape since this one got its own.
        self.was_compiled = False
        hooks = [
            model.register_forward_pre_hook(_EnterRoot(self)),
            model.register_forward_hook(_LeaveRoot(self), always_call=True),
        ]
        self._root = [hook.remove for hook in hooks]
        self._show = hidden.hide(model)
        attached.add(self)
        self.watch_parts()

    @property
    def model(self) -> nn.Module | None:
        return self._model()

    def remove(self) -> None:
        """Take every hook off the model."""
        self.leave_parts_alone()
        for remove in self._root:
            remove()
        self._show()
        attached.discard(self)

    def watch_parts(self) -> None:
        """Enter the tape also for calls of the model's parts, unless it is compiled."""
        model = self.model
        if self._parts or self.was_compiled or model is None:
            return
        enter, leave = _EnterPart(self), _LeavePart(self)
        for part in model.modules():
            if part is not model and not isinstance(part, torch.jit.ScriptModule):
                self._parts.append(part.register_forward_pre_hook(enter).remove)
                self._parts.append(part.register_forward_hook(leave, always_call=True).remove)

    def leave_parts_alone(self) -> None:
        """Take the hooks off the parts: the tape is entered in another way."""
        for remove in self._parts:
            remove()
        self._parts.clear()
        self._calls.clear()

    def release_parts(self) -> None:
        """The model itself is called: its parts need no hooks, unless they have proved to."""
        if self._parts and not self.parts_needed:
            self.leave_parts_alone()

    # -- what the hooks say --------------------------------------------------------------

    def begin_root(self, frame: FrameType) -> None:
        """The model itself is called; its hooks run in `frame`."""
        if torch.is_grad_enabled():
            self.root_calls += 1
            self.release_parts()
        self.tape.begin_call(frame)

    def end_root(self, result: Any) -> None:
        self.tape.end_call(result)
        self._tell(result)
        if torch.is_grad_enabled():
            for listener in self.listeners:
                listener(self.root_calls)

    def begin_part(self, part: nn.Module, frame: FrameType) -> None:
        if self._calls and not _is_running(self._calls[-1].frame, frame):
            self._calls.clear()
        self.tape.clear_up(frame)
        outermost = not any(call.entered for call in self._calls)
        entered = outermost and torch.is_grad_enabled()
        if entered and self.tape.is_entered:
            if not self.root_calls and not self.parts_needed:
                self.leave_parts_alone()  # `with tape:` is how this one is entered
                return
            entered = False
        if entered:
            self.parts_needed = True
            self.tape.begin_call(frame, part=part)
        self._calls.append(_PartCall(part, frame, entered))

    def end_part(self, part: nn.Module, result: Any) -> None:
        if self._calls and self._calls[-1].part is part and self._calls.pop().entered:
            self.tape.end_call(result)
            self._tell(result)

    def why_not_backward_twice(self) -> str:
        """Why the gradients of this model are not computed twice; empty if they may be."""
        if self.was_compiled or self.tape.graphs:
            return "the model is compiled"
        model = self.model
        kinds = (
            {type(part).__name__ for part in model.modules()} if model is not None else set()
        )
        wrapped = [kind for kind in kinds if kind in _WRAPPERS or kind.startswith("FSDP")]
        return f"{wrapped[0]} exchanges gradients in backward" if wrapped else ""

    def _tell(self, result: Any) -> None:
        for ended in self.ended if self.tape.is_active else ():
            ended(result)


class _PartCall:
    """A call of a part that runs, and whether the tape was entered for it."""

    __slots__ = ("entered", "frame", "part")

    def __init__(self, part: nn.Module, frame: FrameType, entered: bool) -> None:
        self.part, self.frame, self.entered = part, frame, entered


class _Hook(hidden.Hook):
    def __init__(self, hooks: ModelHooks) -> None:
        self.hooks = hooks


class _EnterRoot(_Hook):
    def __call__(self, _module: nn.Module, _args: Any) -> None:
        if not is_traced():
            announce_if_loaded()
            self.hooks.begin_root(sys._getframe(1))
        elif torch.compiler.is_compiling() and not is_exported():
            _announce_root()


class _LeaveRoot(_Hook):
    def __call__(self, _module: nn.Module, _args: Any, result: Any) -> None:
        if not is_traced():
            self.hooks.end_root(result)


class _EnterPart(_Hook):
    def __call__(self, module: nn.Module, _args: Any) -> None:
        if not is_traced():
            announce_if_loaded()
            self.hooks.begin_part(module, sys._getframe(1))
        elif torch.compiler.is_compiling() and not is_exported():
            _announce_part()


class _LeavePart(_Hook):
    def __call__(self, module: nn.Module, _args: Any, result: Any) -> None:
        if not is_traced():
            self.hooks.end_part(module, result)


@at_trace_time
def _announce_root() -> bool:
    """Called while Dynamo traces a model with a tape, before it comes to the parts.

    Compiled graphs find their tape by their parameters, so parts need no hooks there.
    """
    for hooks in attached:
        hooks.was_compiled = True
        hooks.release_parts()
    return announce()


@at_trace_time
def _announce_part() -> bool:
    """Called while Dynamo traces a part of a model: compiled code refers to its hooks now."""
    for hooks in attached:
        hooks.was_compiled = hooks.parts_needed = True
    return announce()


def _is_running(frame: FrameType, here: FrameType | None) -> bool:
    while here is not None and here is not frame:
        here = here.f_back
    return here is frame
