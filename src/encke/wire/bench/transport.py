"""One rank of a comparison: an all-to-all of bytes in one go, and in pieces."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

from encke.wire.bench.worker import report
from encke.wire.failure import new_group
from encke.wire.pieces import all_to_all_bytes

_PAUSE = 0.05  # as a backward between exchanges


def compare(job: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    """Milliseconds of both ways for every size, in turn."""
    world = dist.get_world_size()
    group = new_group()
    rows = []
    for megabytes in job["megabytes"]:
        part = int(1e6 * megabytes / (world - 1))
        message = torch.zeros(part, dtype=torch.uint8)
        sizes = [0 if other == rank else part for other in range(world)]
        outgoing = torch.zeros(sum(sizes), dtype=torch.uint8)

        def whole(outgoing: torch.Tensor = outgoing, sizes: list[int] = sizes) -> None:
            into = torch.empty_like(outgoing)
            dist.all_to_all_single(into, outgoing, sizes, sizes, group=group)

        def in_pieces(message: torch.Tensor = message, sizes: list[int] = sizes) -> None:
            parts = [message[:size] for size in sizes]
            all_to_all_bytes(parts, sizes, longest=max(sizes), group=group)

        times: dict[str, list[float]] = {"whole": [], "pieces": []}
        for turn in range(job["rounds"] + 1):
            for name, way in (("whole", whole), ("pieces", in_pieces)):
                time.sleep(_PAUSE)
                dist.barrier()
                begin = time.perf_counter()
                way()
                taken = 1e3 * (time.perf_counter() - begin)
                if turn:
                    times[name].append(taken)
        rows += [
            {
                "megabytes": megabytes,
                "way": name,
                "median_ms": statistics.median(found),
                "least_ms": min(found),
                "most_ms": max(found),
                "rounds": job["rounds"],
            }
            for name, found in times.items()
        ]
    return rows


if __name__ == "__main__":
    report(compare)
