"""Starts the ranks of a benchmark, on shaped links or without, and collects what they found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from encke.errors import EnckeError
from encke.wire.bench.links import INTERFACE, Rate, ShapedLinks

_PORT = 29_511


class RankError(EnckeError, RuntimeError):
    """A rank of the benchmark ended with an error."""


def run_ranks(
    job: dict[str, Any],
    *,
    ranks: int,
    rate: Rate,
    module: str = "encke.wire.bench.worker",
    seconds: float = 900,
) -> list[dict[str, Any]]:
    """What rank 0 reported, after `ranks` processes worked on `job` over links of `rate`."""
    with (
        _signals_as_exceptions(),
        ShapedLinks(ranks, rate) as links,
        tempfile.TemporaryDirectory() as folder,
    ):
        job_file = Path(folder) / "job.json"
        results = Path(folder) / "results.jsonl"
        init = f"tcp://{links.address(0)}:{_PORT}"
        job_file.write_text(json.dumps({**job, "init_method": init, "results": str(results)}))
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                environment = {
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "GLOO_SOCKET_IFNAME": INTERFACE,
                    "OMP_NUM_THREADS": "1",
                }
                with (Path(folder) / f"{rank}.log").open("wb") as log:
                    processes.append(
                        subprocess.Popen(
                            [*links.command(rank), sys.executable, "-m", module, str(job_file)],
                            env=environment,
                            stdout=log,
                            stderr=log,
                        )
                    )
            failed = _wait(processes, seconds)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        found = results.read_text().splitlines() if results.exists() else []
        if failed is not None:
            log_text = (Path(folder) / f"{failed}.log").read_text(errors="replace")
            last = "\n".join(log_text.strip().splitlines()[-12:])
            raise RankError(f"rank {failed} of {ranks} at {rate} ended badly:\n{last}")
        return [json.loads(line) for line in found]


def _wait(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> int | None:
    """The first rank that failed, or None; a rank that takes too long has failed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        codes = [process.poll() for process in processes]
        bad = [rank for rank, code in enumerate(codes) if code]
        if bad:
            return bad[0]
        if all(code == 0 for code in codes):
            return None
        time.sleep(0.1)
    return next(rank for rank, process in enumerate(processes) if process.poll() is None)


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP end the program through its `finally` clauses, as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    caught = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
