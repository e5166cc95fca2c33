"""How fast a group's ranks exchange bytes: measured in a fraction of a second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from encke.wire.failure import answered
from encke.wire.pieces import all_to_all_bytes

_START = 1 << 18
_LARGEST = 1 << 25
_ENOUGH = 0.12  # seconds that one exchange takes before larger ones are left out
_LATENCIES = 9
_TIMES = 3  # that the largest is timed; more often while that is cheap
_MOST_TIMES = 9
_LONG = 0.4  # seconds of that which suffice


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Seconds of one exchange as a straight line: latency + bytes / bandwidth.

    busy  share of that time in which the exchange keeps a processor busy (copying, summing)

    >>> Line(latency=1e-3, bandwidth=1e6).seconds(5000)
    0.006
    """

    latency: float
    bandwidth: float
    busy: float = 0.0

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What a rank's link does in an all-to-all and in an all-reduce.

    exchange  of bytes that a rank sends to the others together
    reduce    of bytes of the tensor that is reduced
    """

    world: int
    exchange: Line
    reduce: Line


def measure_link(group: Any, *, device: torch.device) -> Link:
    """Latency and bandwidth of `group`, which nothing else may use meanwhile.

    The slowest rank counts, so every rank finds the same.
    """
    world = dist.get_world_size(group)
    if world == 1:
        free = Line(latency=0.0, bandwidth=float("inf"))
        return Link(world=1, exchange=free, reduce=free)

    # Made and touched before the clock runs, as the buckets of a training are.
    room = torch.zeros(_LARGEST // 4, device=device)

    def exchange(nbytes: int) -> None:
        part = -(-nbytes // (world - 1))
        sizes = [part] * world
        sizes[dist.get_rank(group)] = 0
        message = room.view(torch.uint8)[:part]
        all_to_all_bytes([message[:n] for n in sizes], sizes, longest=part, group=group)

    def reduce(nbytes: int) -> None:
        with answered(group, "the measurement of the link"):
            dist.all_reduce(room[: nbytes // 4], group=group)

    return Link(
        world=world,
        exchange=_line(exchange, group, device),
        reduce=_line(reduce, group, device),
    )


def slowest(seconds: float, group: Any, device: torch.device) -> float:
    """The largest of all ranks' times."""
    found = torch.tensor([seconds], dtype=torch.float64, device=device)
    with answered(group, "the measurement of the link"):
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return float(found)


def _line(run: Callable[[int], None], group: Any, device: torch.device) -> Line:
    shares: list[float] = []

    def timed(nbytes: int) -> float:
        with answered(group, "the measurement of the link"):
            dist.barrier(group=group)
        begin, busy = time.perf_counter(), time.process_time()
        run(nbytes)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken = time.perf_counter() - begin
        shares.append((time.process_time() - busy) / taken if device.type == "cpu" else 0.0)
        return slowest(taken, group, device)

    latency = statistics.median(timed(64) for _ in range(_LATENCIES))
    size, taken = _START, timed(_START)
    while taken < _ENOUGH and size < _LARGEST:
        size *= 2
        taken = timed(size)
    # The first bytes may pass a shaped link unhindered: what counts comes after these.
    shares.clear()
    times: list[float] = []
    while len(times) < _TIMES or (
        len(times) < _MOST_TIMES and sum(times) < _LONG  # the same on every rank
    ):
        times.append(timed(size))
    busy = slowest(min(1.0, statistics.median(shares)), group, device)
    whole = statistics.median(times)
    return Line(latency=latency, bandwidth=size / max(whole - latency, 0.5 * whole), busy=busy)
