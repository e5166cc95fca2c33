"""Where each program's output begins, while the other programs still run.

A scan by decoupled look-back (Merrill and Garland 2016): every program publishes the length
of its own part, then adds up those before it until it meets one that knows its end. So input
is read once and output written once, in one kernel, without the host.

`state` is int64 zeros: a counter, the total, then a word for each part: its number shifted
left by two, plus 1 if that is its own length, 2 if it is the end of everything up to it. A
word is written and read whole, so no order between memory accesses is asked for.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Words of `state` before the parts' own.
HEAD = tl.constexpr(2)
_WINDOW = tl.constexpr(32)


@triton.jit
def ticket(state):
    """The part this program does: they are handed out in the order in which programs start,
    so that whoever waits, waits for one that runs or has run."""
    one = tl.full((), 1, tl.int64)
    return tl.atomic_add(state, one, sem="relaxed")


@triton.jit
def start_of(state, index, parts, length):
    """The sum of the lengths of all parts before `index`; the last part writes the total."""
    length = length.to(tl.int64)
    words = state + HEAD
    tl.atomic_xchg(words + index, length * 4 + 1, sem="relaxed")
    before = tl.zeros((), tl.int64)
    lane = tl.arange(0, _WINDOW).to(tl.int64)
    nearest = index - 1
    while nearest >= 0:
        at = nearest - lane
        # Reading by adding nothing: an ordinary load may be answered from a stale cache.
        seen = tl.atomic_add(words + at, lane * 0, mask=at >= 0, sem="relaxed")
        seen = tl.where(at >= 0, seen, 2)  # before the first part everything ends at 0
        known = seen & 3
        ended = tl.min(tl.where(known == 2, lane, _WINDOW), 0)
        waiting = tl.max(((known == 0) & (lane <= ended)).to(tl.int32), 0)
        if waiting == 0:
            before += tl.sum(tl.where(lane <= ended, seen >> 2, 0), 0)
            nearest = tl.where(ended < _WINDOW, -1, nearest - _WINDOW)
    tl.atomic_xchg(words + index, (before + length) * 4 + 2, sem="relaxed")
    if index == parts - 1:
        tl.store(state + 1, before + length)
    return before
