"""Ranks of which one is stopped, as by Ctrl-Z or a debugger; what the others hear."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from worlds import Run

from encke.bound import Absolute
from encke.wire import CompressedComm
from encke.wire.failure import timeout_of
from encke.wire.kfac.collectives import Exact

#: Seconds that the default group waits for a rank.
TIMEOUT = 5.0
_PATIENCE = 100


def heard_by_the_others(
    worker: Callable[..., Any], *, world: int, stop: int, meeting: str, folder: Path
) -> list[Any]:
    """What every rank but the one that stops has written, in rank order."""
    context = mp.get_context("spawn")  # a child forked after OpenMP has run hangs
    ranks = [
        context.Process(target=_rank, args=(rank, world, stop, meeting, str(folder), worker))
        for rank in range(world)
    ]
    others = [rank for rank in range(world) if rank != stop]
    try:
        for process in ranks:
            process.start()
        for rank in others:
            ranks[rank].join(_PATIENCE)
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in others]
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
            process.join()


def _rank(
    rank: int, world: int, stop: int, meeting: str, folder: str, worker: Callable[..., Any]
) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    # Ranks import at their own pace; the short timeout is for what comes then.
    Path(folder, f"{rank}.here").touch()
    while not all(Path(folder, f"{other}.here").exists() for other in range(world)):
        time.sleep(0.05)
    dist.init_process_group(
        "gloo",
        init_method=meeting,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT),
    )
    found = worker(rank, stop)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # the groups cannot be taken apart in good order any more


def every_way_to_wait(rank: int, stop: int) -> list[dict[str, Any]]:
    """A rank is stopped after three steps; every way to wait for it ends."""
    run = Run()
    comm = CompressedComm()
    pair = comm.subgroup([0, stop])
    exact = Exact()
    timeouts = [timeout_of(g) for g in (run.comm.group, comm.group, exact._group)]
    timeouts += [timeout_of(pair.group)] if rank == 0 else []
    assert timeouts == [timedelta(seconds=TIMEOUT)] * len(timeouts)
    run.steps(0, 3)
    if rank == stop:
        os.kill(os.getpid(), signal.SIGSTOP)
    x = torch.linspace(0, 1, 400)
    ways: dict[str, Callable[[], object]] = {
        "backward": lambda: run.steps(3, 1000),
        "mean": lambda: comm.all_reduce_mean(x, bound=Absolute(0.1), name="mine").wait(),
        "next": lambda: comm.all_reduce_mean(x, bound=Absolute(0.1), name="late").wait(),
        "exact": lambda: exact.all_reduce_mean(x, bound=None, name="factors").wait(),
    }
    return [_heard(way, call) for way, call in ways.items()]


def one_mean(rank: int, stop: int) -> list[dict[str, Any]]:
    """A rank is stopped before anything is exchanged."""
    comm = CompressedComm()
    if rank == stop:
        os.kill(os.getpid(), signal.SIGSTOP)
    x = torch.ones(4)
    return [_heard("mean", lambda: comm.all_reduce_mean(x, bound=None, name="mine").wait())]


def _heard(way: str, call: Callable[[], object]) -> dict[str, Any]:
    began = time.monotonic()
    error: BaseException | None = None
    try:
        call()
    except Exception as raised:
        error = raised
    return {
        "way": way,
        "kind": [cls.__name__ for cls in type(error).__mro__],
        "message": str(error),
        "silent": getattr(error, "silent", None),
        "completed_step": getattr(error, "completed_step", None),
        "seconds": time.monotonic() - began,
    }
