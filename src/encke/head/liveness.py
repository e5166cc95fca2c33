"""Whether a lazy tensor may still be read when an optimizer is about to change the weights.

In most training loops a variable still holds the model's output when the optimizer steps, and
is assigned anew before anything reads it. To compute the logits for it would cost their whole
memory in every step. So the variables of the running functions are looked at: where everything
that refers to the tensor is a variable that is written before it is read, the tensor is dead.

Whatever is not understood counts as alive: an attribute, a list, a closure, a notebook.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

#: How deep containers between a variable and the tensor may be nested.
DEPTH = 3

_READS = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL")
_WRITES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL")
_KNOWN_READS = frozenset(
    ["LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_NAME", "LOAD_GLOBAL"]
)
_KNOWN_WRITES = frozenset(["STORE_FAST", "STORE_NAME", "STORE_GLOBAL"])
_ENDS = frozenset(["RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"])
_JUMPS = frozenset(
    ["JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"]
)


def may_be_read(members: list[Any]) -> bool:
    """Whether anything but dead variables refers to these tensors.

    members  the tensors; the list is the only reference that the caller holds
    """
    frame = sys._getframe(1)
    own = {id(members), id(frame)}
    frames = list(_outer(frame))
    try:
        return any(_is_alive(member, frames, own, DEPTH) for member in members)
    finally:
        del frames, frame


def _is_alive(thing: Any, frames: list[FrameType], own: set[int], depth: int) -> bool:
    """Whether a path leads to `thing` from anything but a dead variable."""
    for holder in gc.get_referrers(thing):
        if id(holder) in own or holder is frames or isinstance(holder, Iterator):
            continue
        if isinstance(holder, FrameType):
            if holder.f_code is _is_alive.__code__ or holder.f_code is may_be_read.__code__:
                continue
            if _reads(holder, thing):
                return True
        elif _is_module_dictionary(holder, frames):
            if any(_reads(f, thing) for f in frames if f.f_globals is holder):
                return True
        elif depth and isinstance(holder, dict | tuple | list) or _is_output(holder):
            own_next = own | {id(frames)}
            if not depth or _is_alive(holder, frames, own_next, depth - 1):
                return True
        else:
            return True
    return False
