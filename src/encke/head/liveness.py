"""Whether a lazy tensor may still be read when an optimizer is about to change the weights.

In most training loops a variable still holds the model's output when the optimizer steps, and
is assigned anew before anything reads it. Computing the logits for it would cost their whole
memory in every step. So the references to the tensor are counted: if each of them belongs to a
variable of a running function, or to a container that such a variable holds, and if the code
writes all these variables before it reads them, nobody can read the tensor any more.

Whatever is not understood counts as read: an attribute of some object, a closure, a generator,
another thread, a notebook, a debugger.
"""

from __future__ import annotations

import bisect
import dis
import gc
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch import Tensor

_WRITES = frozenset(
    ["STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "DELETE_FAST", "DELETE_NAME", "DELETE_GLOBAL"]
)
_ENDS = frozenset(["RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"])
_UNCONDITIONAL = frozenset(
    ["JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"]
)


_CONTAINERS = (dict, list, tuple)
#: How deep containers may be nested, and how many entries they may have, to be looked into.
_DEPTH, _ENTRIES = 3, 64


def may_be_read(things: list[Any]) -> bool:
    """Whether anything but variables that are written first refers to these objects.

    things  in a list that holds the only reference of the caller
    """
    if sys.gettrace() is not None:
        return True
    frames = [f for f in _outer(sys._getframe(1)) if f.f_globals is not globals()]
    search = _Search(frames, things)
    return any(search.is_read(id(things[n])) for n in range(len(things)))


class _Variable(NamedTuple):
    frame: FrameType
    name: str
    references: int


class _Search:
    """What running functions hold, by the identity of what is held."""

    def __init__(self, frames: list[FrameType], things: list[Any]) -> None:
        self.frames = frames
        #: Everything that is looked at, once; the references to it that are known.
        self.objects: dict[int, Any] = {}
        self.variables: dict[int, list[_Variable]] = {}
        self.holders: dict[int, list[int]] = {}
        self.done: set[int] = set()
        self.things = set(map(id, things))
        self.list_of_things = id(things)
        for frame in frames:
            self._look_at_variables(frame)
        for number in range(len(things)):
            # A lazy tensor refers to the one that it was made from.
            self._look_into(things[number], _DEPTH)

    def _look_at_variables(self, frame: FrameType) -> None:
        variables = frame.f_locals
        # Python 3.11 and 3.12 keep a copy of a function's variables.
        copied = variables is not frame.f_globals and type(variables) is dict
        for name, value in variables.items():
            if isinstance(value, (*_CONTAINERS, Tensor)):
                found = self.variables.setdefault(id(value), [])
                found.append(_Variable(frame, name, 1 + copied))
                if isinstance(value, _CONTAINERS):
                    self._look_into(value, _DEPTH)

    def _look_into(self, container: Any, depth: int) -> None:
        key = id(container)
        if key in self.objects or key == self.list_of_things or not depth:
            return
        self.objects[key] = container
        inside = gc.get_referents(container)
        if len(inside) > _ENTRIES:
            return
        for one in inside:
            if isinstance(one, _CONTAINERS) or id(one) in self.things:
                self.holders.setdefault(id(one), []).append(key)
                self._look_into(one, depth - 1)

    def is_read(self, key: int) -> bool:
        """Whether an object may be read, by itself or through what holds it."""
        if key in self.done:
            return False
        self.done.add(key)
        variables, holders = self.variables.get(key, []), self.holders.get(key, [])
        known = sum(each.references for each in variables) + len(holders)
        # `objects`, the list of things, and the argument of getrefcount.
        if sys.getrefcount(self.objects[key]) != known + 2 + (key in self.things):
            return True
        if any(_is_variable_read(*each[:2]) for each in variables):
            return True
        return any(self.is_read(holder) for holder in holders)


def _is_variable_read(frame: FrameType, name: str) -> bool:
    """Whether a variable is read after what its frame runs now."""
    if frame.f_locals is frame.f_globals and (
        "__file__" not in frame.f_globals or sys.flags.interactive or hasattr(sys, "ps1")
    ):
        return True  # a notebook: cells to come read it
    code = frame.f_code
    if name in code.co_cellvars or name in code.co_freevars or "locals" in code.co_names:
        return True
    if any(name in inner.co_names for inner in _inner(code)):
        return True
    return _is_read_after(code, frame.f_lasti, name)


def _outer(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


@lru_cache(maxsize=256)
def _is_read_after(code: CodeType, offset: int, name: str) -> bool:
    """Whether code reads a variable, after the instruction at `offset`, before it writes it."""
    listing = dis.Bytecode(code)
    instructions = list(listing)
    places = {each.offset: number for number, each in enumerate(instructions)}
    entries: Any = getattr(listing, "exception_entries", [])
    handlers = [(h.start, h.end, h.target) for h in entries]
    # The offset may be that of a cache entry behind the instruction.
    start = bisect.bisect_right([each.offset for each in instructions], offset) - 1
    # `with` may swallow an exception and go on. It is taken to raise it: in the rare case that
    # it does not, using the logits is an error, and never gives wrong values.
    raising = {
        number
        for number, each in enumerate(instructions)
        if any(
            b.opname == "WITH_EXCEPT_START" for b in instructions[max(0, number - 3) : number]
        )
    }
    seen: set[int] = set()
    # The call that runs may return, or raise.
    stack = [start + 1, *_targets(handlers, places, offset)]
    while stack:
        number = stack.pop()
        if number in seen or number >= len(instructions):
            continue
        seen.add(number)
        each = instructions[number]
        stack.extend(_targets(handlers, places, each.offset))
        if each.argval == name or (isinstance(each.argval, tuple) and name in each.argval):
            if each.opname in _WRITES:
                continue
            if each.opname not in ("LOAD_ATTR", "STORE_ATTR", "LOAD_METHOD", "LOAD_CONST"):
                return True
        if each.opname in _ENDS:
            continue
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            if number not in raising:
                stack.append(places[each.argval])
            if each.opname in _UNCONDITIONAL:
                continue
        stack.append(number + 1)
    return False


def _targets(
    handlers: list[tuple[int, int, int]], places: dict[int, int], offset: int
) -> list[int]:
    return [places[target] for start, end, target in handlers if start <= offset < end]
