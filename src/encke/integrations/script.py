"""Finding the model and the optimizer of a training script that says nothing of Encke.

Two things of torch are watched while a `Discovery` is entered. Every optimizer is noticed when
it is given parameters: `Optimizer.add_param_group`, which its constructor calls as well, is
wrapped. And a global forward pre-hook sees every call of a module, the outermost one first:
a module called with gradients on, of which an optimizer holds a parameter that is trained, is
the model, and gets its tape before that very call. Parts of it are then left alone.

A script whose outermost calls are parts of a model (an encoder here, a decoder there) gets a
tape for each of them; when a larger module that holds such a part is called, the part's tape
makes way for the larger one's. When the same model gets another optimizer, its controller goes
on with that one.

`DistributedDataParallel` is passed over for the module inside. What torch.compile runs keeps
its tensors inside the compiled graphs. A module that is compiled in place (`model.compile()`)
calls no hooks before torch traces it, so `nn.Module.compile` is wrapped as well, and the module
is seen when it is called.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from encke.control import Adaptive, attach
from encke.control.effectiveness import LITTLE, is_lossless, no_effect, reasons
from encke.control.hooks import hooks_of
from encke.control.optimizers import LosslessFor
from encke.errors import UnsupportedError
from encke.integrations.survival import in_words, survive_errors
from encke.tape import Policy, Tape
from encke.tape.autograd.nodes import is_compiled, is_traced, under_transform
from encke.tape.observe.records import Records
from encke.tape.storage.byte_count import ByteCount

#: Makes the policy for a model and the optimizers that train it.
MakePolicy = Callable[[nn.Module, list[Optimizer]], Policy]


class Attachment:
    """A module that was found, and what its tape has stored so far.

    Holds neither the module nor its tape, so that a script may drop its model.
    """

    def __init__(self, module: nn.Module, optimizers: list[Optimizer], tape: Tape) -> None:
        self.module = type(module).__name__
        self.optimizers: list[str] = []
        #: Calls of the module with gradients on, and steps of the optimizer that took most.
        self.calls = self.steps = 0
        #: What the tape holds in the last step, tensor by tensor.
        self.records: Records = tape.records
        #: Seconds spent inside Encke, as far as they are known.
        self.seconds = 0.0
        self._ledger: ByteCount = tape.ledger
        self._tape = weakref.ref(tape)
        self._lossless = self._looked = False
        self._no_effect = ""
        self.train_by(optimizers)

    @property
    def tape(self) -> Tape | None:
        """While the module lives."""
        return self._tape()

    @property
    def stored_peak(self) -> int:
        """The most bytes stored for backward at once."""
        return self._ledger.stored_peak

    @property
    def plain_peak(self) -> int:
        """The most bytes that autograd alone would have held at once."""
        return self._ledger.plain_peak

    @property
    def why(self) -> str:
        """Why little or nothing was saved; "" if much was."""
        self.look()
        if self._no_effect:
            return self._no_effect
        if self.calls and not self.steps:
            return "no optimizer that trains it took a step"
        if self._lossless:
            return "stored lossless, as its optimizer or the policy wants it"
        if self.plain_peak >= LITTLE * max(1, self.stored_peak) or not self.plain_peak:
            return ""
        return reasons(self.records)

    def stepped(self, count: int) -> None:
        """The optimizers of the module have taken `count` steps."""
        self.steps = count
        if count & (count - 1) == 0:
            self.look()

    def look(self) -> None:
        """Note what only the tape and the module tell, while they are there."""
        tape = self.tape
        if tape is None or tape.model is None:
            return
        self.seconds = seconds_of(tape)
        self._lossless = is_lossless(tape)
        hooks = hooks_of(tape.model)
        if hooks is not None:
            self._no_effect = no_effect(hooks)

    def train_by(self, optimizers: list[Optimizer]) -> None:
        self.optimizers += [type(one).__name__ for one in optimizers]
        self._trained_by = [weakref.ref(one) for one in optimizers]

    def is_trained_by(self, optimizers: list[Optimizer]) -> bool:
        known = [one() for one in self._trained_by]
        return len(known) == len(optimizers) and all(
            a is b for a, b in zip(known, optimizers, strict=True)
        )

    def detach(self) -> None:
        self.look()
        if (tape := self.tape) is not None:
            tape.detach()


def seconds_of(tape: Tape) -> float:
    """Seconds that were spent inside a tape; 0 where nobody counts them."""
    return float(getattr(tape, "seconds", 0.0))


class Discovery:
    """While entered, attaches a tape to each model that an optimizer trains.

    >>> with Discovery() as found:
    ...     model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     model(torch.randn(256, 64)).square().mean().backward()
    ...     optimizer.step()
    >>> [a.module for a in found.attachments], found.attachments[0].steps
    (['Sequential'], 1)
    >>> found.attachments[0].stored_peak < found.attachments[0].plain_peak / 4
    True
    """

    def __init__(
        self,
        *,
        tolerance: float = 0.01,
        make_policy: MakePolicy | None = None,
        slowdown: float | None = None,
    ) -> None:
        self._slowdown = slowdown
        self._tolerance = tolerance
        self._make_policy = make_policy
        self.attachments: list[Attachment] = []
        #: Called after each step of an optimizer that trains a module with a tape.
        self.listeners: list[Callable[[], None]] = []
        #: Why modules that an optimizer trains were left as they are.
        self.refusals: list[str] = []
        self.optimizers_seen: list[str] = []
        self._optimizers: list[weakref.ref[Optimizer]] = []
        # What is known of a module, and how many times parameters had been given to
        # optimizers when that was found.
        self._known: weakref.WeakKeyDictionary[nn.Module, tuple[int, Attachment | None]] = (
            weakref.WeakKeyDictionary()
        )
        self._roots: weakref.WeakKeyDictionary[nn.Module, Attachment] = (
            weakref.WeakKeyDictionary()
        )
        self._given = 0
        self._disabled = False
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Discovery:
        self._undo.append(_notice_parameters(self._notice))
        self._undo.append(register_module_forward_pre_hook(self._before).remove)
        self._undo.append(_notice_calls_of_compiled(self._before))
        return self

    def __exit__(self, *_error: object) -> None:
        while self._undo:
            self._undo.pop()()
        for attachment in self.attachments:
            attachment.detach()

    def take_over(self, before: Discovery) -> None:
        """Watch in the place of `before`, which was entered when this process was forked."""
        for attachment in before.attachments:
            attachment.detach()
        self._optimizers += before._optimizers
        self._given += before._given
        before._disabled = True

    # -- what torch tells ----------------------------------------------------------------

    def _notice(self, optimizer: Optimizer) -> None:
        self._given += 1
        if not any(one() is optimizer for one in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))
            self.optimizers_seen.append(type(optimizer).__name__)

    def _before(self, module: nn.Module, _args: Any) -> None:
        if is_traced():
            return  # by Dynamo, which does not look further
        try:
            self._look_at(module, sys._getframe(1))
        except Exception as error:  # the script runs on as it would plainly
            self._refuse(f"{type(module).__name__}: {in_words(error)}")

    def _look_at(self, module: nn.Module, frame: FrameType) -> None:
        if self._disabled or under_transform() or not torch.is_grad_enabled():
            return  # there a tape stands aside
        given, attachment = self._known.get(module, (-1, None))
        if given != self._given:
            count = len(self.attachments)
            attachment = self._consider(module, attachment)
            self._known[module] = (self._given, attachment)
            new = self.attachments[-1].tape if len(self.attachments) > count else None
            if new is not None and not is_compiled(module):
                # The hooks of this call were listed before this one was called: the tape's
                # own will end it, but not begin it.
                hooks = hooks_of(module)
                if hooks is not None:
                    hooks.begin_root(frame)
        if attachment is not None and self._roots.get(module) is attachment:
            attachment.calls += 1

    # -- what follows --------------------------------------------------------------------

    def _consider(self, module: nn.Module, known: Attachment | None) -> Attachment | None:
        root = self._roots.get(module)
        if root is None and known is not None and known in self._roots.values():
            return known  # a part of a module that has a tape
        if isinstance(module, DistributedDataParallel):
            return None
        optimizers = self._trainers_of(module)
        if not optimizers:
            return root
        if root is None:
            return self._attach(module, optimizers)
        if not root.is_trained_by(optimizers):
            self._hand_over(module, root, optimizers)
        return root

    def _trainers_of(self, module: nn.Module) -> list[Optimizer]:
        """The optimizers that hold a parameter of `module` that is trained, in their order.

        Not those all of whose parameters newer ones hold as well: they were replaced, or
        wrap what does the work.
        """
        free = {id(p) for p in module.parameters() if p.requires_grad}
        found: list[Optimizer] = []
        for optimizer in filter(None, (one() for one in reversed(self._optimizers))):
            held = {id(p) for group in optimizer.param_groups for p in group["params"]} & free
            if held:
                found.insert(0, optimizer)
                free -= held
        return found

    def _attach(self, module: nn.Module, optimizers: list[Optimizer]) -> Attachment | None:
        tape = self._new_tape(module, optimizers)
        attachment: Attachment | None = None
        if tape is not None:
            attachment = Attachment(module, optimizers, tape)
            self.attachments.append(attachment)
            survive_errors(tape, self._refuse_for(module))
            self._follow_steps(tape, attachment)
        for part in module.modules():
            if part in self._roots and attachment is not None:
                self._roots.pop(part).detach()
            self._known[part] = (self._given, attachment)
        if attachment is not None:
            self._roots[module] = attachment
        return attachment

    def _hand_over(
        self, module: nn.Module, attachment: Attachment, optimizers: list[Optimizer]
    ) -> None:
        """Let the policy of a model that is attached go on with other optimizers.

        The tape stays: its hooks for the call that begins are already listed.
        """
        attachment.train_by(optimizers)
        tape = attachment.tape
        if tape is None:
            return
        policy = tape.policy.inner if isinstance(tape.policy, LosslessFor) else tape.policy
        if self._make_policy is not None:
            new = self._make_policy(module, optimizers)
            new.load_state_dict(policy.state_dict())
            tape.policy = new
        elif isinstance(policy, Adaptive):
            policy.reference.optimizers = optimizers
            hooks = hooks_of(module)
            if hooks is not None and hooks.steps is not None:
                hooks.steps.suit(*optimizers)

    def _new_tape(self, module: nn.Module, optimizers: list[Optimizer]) -> Tape | None:
        if self._make_policy is None:
            make: dict[str, Any] = {"tolerance": self._tolerance}
        else:
            make = {"policy": self._make_policy(module, optimizers)}
        try:
            return attach(module, optimizers, slowdown=self._slowdown, **make)
        except UnsupportedError as error:
            self._refuse(f"{type(module).__name__}: {error}")
        except Exception as error:
            self._refuse(f"{type(module).__name__}: {in_words(error)}")
        return None

    def _follow_steps(self, tape: Tape, attachment: Attachment) -> None:
        hooks = None if tape.model is None else hooks_of(tape.model)
        if hooks is None or hooks.steps is None:
            return
        hooks.steps.listeners.append(attachment.stepped)
        hooks.steps.listeners.append(self._tell_of_step)

    def _tell_of_step(self, _count: int) -> None:
        for listener in self.listeners:
            listener()

    def _refuse_for(self, module: nn.Module) -> Callable[[str], None]:
        name = type(module).__name__
        return lambda reason: self._refuse(f"{name}: {reason}")

    def _refuse(self, reason: str) -> None:
        if reason not in self.refusals:
            self.refusals.append(reason)


def _notice_parameters(notice: Callable[[Optimizer], None]) -> Callable[[], None]:
    """Call `notice` with each optimizer that is given parameters; gives what undoes that."""
    original = Optimizer.add_param_group

    @wraps(original)
    def add_param_group(self: Optimizer, param_group: dict[str, Any]) -> None:
        original(self, param_group)
        notice(self)

    Optimizer.add_param_group = add_param_group  # type: ignore[method-assign]

    def undo() -> None:
        Optimizer.add_param_group = original  # type: ignore[method-assign]

    return undo


def _notice_calls_of_compiled(before: Callable[[nn.Module, Any], None]) -> Callable[[], None]:
    """Call `before` ahead of each module that is compiled in place; gives what undoes that."""
    original = nn.Module.compile
    noticed: list[tuple[weakref.ref[nn.Module], Any]] = []

    @wraps(original)
    def compile(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        inner: Any = self._compiled_call_impl
        module = weakref.ref(self)

        def call(*given: Any, **named: Any) -> Any:
            mine = None if is_traced() else module()
            if mine is not None:
                before(mine, given)
            return inner(*given, **named)

        self._compiled_call_impl = call
        noticed.append((module, inner))

    nn.Module.compile = compile  # type: ignore[method-assign]

    def undo() -> None:
        nn.Module.compile = original  # type: ignore[method-assign]
        for module, inner in noticed:
            mine = module()
            if mine is not None and mine._compiled_call_impl is not None:
                mine._compiled_call_impl = inner

    return undo
