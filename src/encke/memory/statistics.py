"""What the pool holds, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """The numbers of the pool at one moment; sizes in bytes, in whole pages.

    reserved            address space; no memory
    live                blocks that torch holds now
    resident            live blocks, and free pages that the next blocks get; an upper bound,
                        because a block counts although it may not have been written to
    peak_live           the most `live` since the pool was installed, or since `reset_peak`
    peak_resident       likewise the most `resident`
    fresh               pages that blocks got from the system, all in all
    returned            pages that the pool gave back to the system, all in all
    blocks              live blocks
    allocations         blocks that the pool has served, all in all
    passed_on           requests of 64 KB or more that the pool had no room for, and that the C
                        library served or refused
    window_operations   allocations and frees over which the pool looks for the recent peak, and
    window_seconds      the time over which it does; whichever is over first
    """

    reserved: int = 0
    live: int = 0
    resident: int = 0
    peak_live: int = 0
    peak_resident: int = 0
    fresh: int = 0
    returned: int = 0
    blocks: int = 0
    allocations: int = 0
    passed_on: int = 0
    window_operations: int = 0
    window_seconds: float = 0.0
