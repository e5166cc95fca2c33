"""Running the cells of a study: each in a process of its own, several at a time.

A cell that has its row is not run again, so a study that was interrupted, or killed at any
moment, goes on where it stopped when it is run again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from encke.ops import processors
from encke.study import results
from encke.study.cell import killed
from encke.study.cells import Cell
from encke.study.definition import Study
from encke.study.errors import StudyError
from encke.study.results import Row

try:
    import fcntl
except ImportError:  # Windows: two runs in one directory are then not kept apart
    fcntl = None  # type: ignore[assignment]

_LOOK = 0.05  # seconds between looks at the processes
_PATIENCE = 5.0  # seconds that a process has to end


class Watcher(Protocol):
    """Who hears how a run goes on."""

    def begin(self, *, cells: int, there: int) -> None:
        """So many cells, of which so many have their rows already."""

    def start(self, cell: Cell) -> None:
        """A cell's process has been started."""

    def finish(self, cell: Cell, row: Row, *, left: float | None) -> None:
        """A cell has its row; about so many seconds are left."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    ran     cells that were run now
    failed  cells whose row says so, from this run or an earlier one
    """

    directory: Path
    rows: list[Row]
    ran: int
    failed: list[str]
    missing: list[str]
    interrupted: bool


def run(
    study: Study,
    directory: Path,
    *,
    jobs: int = 1,
    retry: bool = False,
    watcher: Watcher | None = None,
) -> Outcome:
    """Run every cell of `study` that has no row in `directory`.

    jobs   processes at a time; the cores are shared out among them
    retry  run cells again that have failed

    Ctrl-C ends the processes and returns what there is.
    """
    if jobs < 1:
        raise StudyError(f"jobs is {jobs}, it must be at least 1")
    directory.mkdir(parents=True, exist_ok=True)
    with _alone(directory):
        results.remove_parts(directory)
        results.write_study(directory, study)
        pending = [cell for cell in study.cells if _is_due(directory, cell, retry=retry)]
        pool = _Pool(directory, jobs=jobs, total=len(study.cells), watcher=watcher)
        interrupted = pool.run(pending)
        found = results.read(directory)
        results.write_lines(directory, found.rows)
    return Outcome(
        directory=directory,
        rows=found.rows,
        ran=pool.ran,
        failed=[row["cell"] for row in found.rows if row["status"] == "failed"],
        missing=found.missing,
        interrupted=interrupted,
    )


def _is_due(directory: Path, cell: Cell, *, retry: bool) -> bool:
    row = results.read_cell(directory, cell.id)
    return row is None or (retry and row["status"] == "failed")


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """No two runs write to one directory. A run that is killed lets go by itself."""
    with (directory / ".lock").open("w") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyError(
                f"another run is under way in {directory}; wait for it, or give another --out"
            ) from None
        yield


@dataclass(kw_only=True)
class _Process:
    cell: Cell
    process: subprocess.Popen[str]
    said: IO[str]
    begun: float = field(default_factory=time.monotonic)


class _Pool:
    def __init__(
        self, directory: Path, *, jobs: int, total: int, watcher: Watcher | None
    ) -> None:
        self._directory, self._jobs, self._total = directory, jobs, total
        self._watcher = watcher
        self._running: list[_Process] = []
        self._times = Times()
        self.ran = 0

    def run(self, cells: Sequence[Cell]) -> bool:
        """Run all cells; True if Ctrl-C ended it before."""
        waiting = list(reversed(cells))
        if self._watcher is not None:
            self._watcher.begin(cells=self._total, there=self._total - len(cells))
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._jobs:
                    self._start(waiting.pop())
                ended = [one for one in self._running if one.process.poll() is not None]
                for one in ended:
                    self._running.remove(one)
                    self._finish(one, waiting)
                if not ended:
                    time.sleep(_LOOK)
        except KeyboardInterrupt:
            return True
        finally:
            self._stop()
        return False

    def _start(self, cell: Cell) -> None:
        results.cell_path(self._directory, cell.id).unlink(missing_ok=True)  # of a failure
        threads = max(1, processors.usable() // self._jobs)
        said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, "-m", "encke.study.cell", str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C is for the run, which then ends its cells.
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": "0"},
        )
        self._running.append(_Process(cell=cell, process=process, said=said))
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and will be found so
            process.stdin.write(json.dumps(cell.to_json()) + "\n")
            process.stdin.flush()
        if self._watcher is not None:
            self._watcher.start(cell)

    def _finish(self, one: _Process, waiting: Sequence[Cell]) -> None:
        row = results.read_cell(self._directory, one.cell.id)
        if row is None:
            one.said.seek(0)
            row = killed(one.cell, one.process.returncode, one.said.read())
            results.write_cell(self._directory, row)
        self._close(one)
        self.ran += 1
        self._times.add(one.cell, time.monotonic() - one.begun)
        if self._watcher is not None:
            rest = [*waiting, *(other.cell for other in self._running)]
            left = self._times.left(rest, jobs=self._jobs)
            self._watcher.finish(one.cell, row, left=left)

    def _stop(self) -> None:
        """End every process that still runs."""
        for one in self._running:
            one.process.kill()
        for one in self._running:
            one.process.wait(_PATIENCE)
            self._close(one)
        self._running.clear()

    @staticmethod
    def _close(one: _Process) -> None:
        one.said.close()
        if one.process.stdin is not None:
            with suppress(BrokenPipeError):
                one.process.stdin.close()


class Times:
    """How long cells took, by network and data, and how long others may take."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], list[float]] = {}

    def add(self, cell: Cell, seconds: float) -> None:
        self._seen.setdefault((cell.model.name, cell.data.name), []).append(seconds)

    def left(self, cells: Sequence[Cell], *, jobs: int) -> float | None:
        """Seconds for `cells` on `jobs` processes; None while nothing is known."""
        known = [seconds for seen in self._seen.values() for seconds in seen]
        if not known:
            return None
        mean = sum(known) / len(known)
        total = 0.0
        for cell in cells:
            seen = self._seen.get((cell.model.name, cell.data.name))
            total += sum(seen) / len(seen) if seen else mean
        return total / jobs
