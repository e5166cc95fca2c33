"""Time of a call relative to copying the same bytes, measured side by side.

An absolute speed says as much about the machine and its neighbours as about a codec.
So every repeat times, one right after the other, a memcpy between two buffers that were
touched before, a copy into fresh memory, and the calls; the best of each is compared. Like
with like: decoding into a buffer that is there is held against the memcpy, decoding into
fresh memory against the copy into fresh memory.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Timing:
    """Best seconds of encoding, of decoding in place and afresh, and of copying likewise."""

    encode: float
    decode: float
    decode_afresh: float
    memcpy: float
    clone: float
    repeats: int


class Copier:
    """A memcpy of a tensor's size between two buffers that already have their pages."""

    def __init__(self, x: Tensor) -> None:
        self.source = x.contiguous()
        self.target = torch.empty_like(self.source)
        self.count = self.source.numel() * self.source.element_size()
        self()

    def __call__(self) -> None:
        ctypes.memmove(self.target.data_ptr(), self.source.data_ptr(), self.count)


def seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def relative_to_copying(
    x: Tensor,
    encode: Callable[[], Any],
    decode: Callable[[Any, Tensor | None], Any],
    *,
    repeats: int = 7,
) -> Timing:
    """Best of `repeats` of all five, after one call of each to warm up."""
    copy = Copier(x)
    packed = encode()
    there = torch.empty_like(x)
    decode(packed, there)
    best = [float("inf")] * 5
    calls: tuple[Callable[[], Any], ...] = (
        encode,
        lambda: decode(packed, there),
        lambda: decode(packed, None),
        copy,
        x.clone,
    )
    for _ in range(repeats):
        for place, call in enumerate(calls):
            best[place] = min(best[place], seconds(call))
    return Timing(*best, repeats=repeats)


def microseconds_per_call(call: Callable[[], Any], *, calls: int, repeats: int) -> float:
    """Best over `repeats` of the mean over `calls` consecutive calls."""

    def run() -> None:
        for _ in range(calls):
            call()

    run()
    return min(seconds(run) for _ in range(repeats)) / calls * 1e6
