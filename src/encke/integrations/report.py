"""What `encke run` says of a script: a line at its end, a table, a line now and then, a log."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encke.integrations.script import Attachment, Discovery
from encke.tape.observe.summary import render


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What is reported beside the line at the end.

    log       file that gains a line of JSON for each model
    summary   whether the table of what is stored, tensor by tensor, is printed
    progress  seconds between lines while the script runs; None for none
    """

    log: Path | None = None
    summary: bool = False
    progress: float | None = None


class Reporter:
    """Reports what a `Discovery` found, to stderr."""

    def __init__(self, found: Discovery, options: ReportOptions) -> None:
        self._found, self._options = found, options
        self._started = self._last = time.perf_counter()
        self._workers = 0
        self._done = False
        if options.progress is not None:
            found.listeners.append(self._now_and_then)

    def count_worker(self) -> None:
        """The script started a process, which reports by itself."""
        self._workers += 1

    def finish(self) -> None:
        """The line at the end, the table and the log; once."""
        if self._done:
            return
        self._done = True
        for one in self._found.attachments:
            one.look()
        seconds = time.perf_counter() - self._started
        _print(f"{_who()}: {self._in_words(seconds)}")
        if self._options.summary:
            for one in self._found.attachments:
                print(_table(one), file=sys.stderr)
        if self._options.log is not None:
            self._write(self._options.log, seconds)

    def _now_and_then(self) -> None:
        now = time.perf_counter()
        if self._options.progress is not None and now - self._last >= self._options.progress:
            self._last = now
            stored = "; ".join(_stored_in_words(one) for one in self._found.attachments)
            _print(f"{_who()}: after {now - self._started:.0f} s: {stored}; {_peak_in_words()}")

    def _in_words(self, seconds: float) -> str:
        found = self._found
        if not found.attachments:
            return f"nothing was compressed: {self._why_nothing()}; {_peak_in_words()}"
        parts = [_stored_in_words(one) + _why_in_words(one) for one in found.attachments]
        parts += found.refusals
        parts += [_peak_in_words(), _time_in_words(found, seconds)]
        if self._workers:
            parts.append(_workers_in_words(self._workers))
        return "; ".join(parts)

    def _why_nothing(self) -> str:
        found = self._found
        if found.refusals:
            return "; ".join(found.refusals)
        if found.optimizers_seen:
            names = ", ".join(sorted(set(found.optimizers_seen)))
            return (
                "no module that was called with gradients on, and not inside torch.compile, "
                f"holds trained parameters of {names}"
            )
        if self._workers:
            workers = _workers_in_words(self._workers)
            return f"the script's own process made no optimizer; {workers}"
        return (
            "the script made no torch.optim.Optimizer; if it updates parameters itself, call "
            "encke.attach(model) in it"
        )

    def _write(self, log: Path, seconds: float) -> None:
        lines = [json.dumps(facts) + "\n" for facts in self._facts(seconds)]
        try:
            with log.open("a") as file:  # several ranks may write
                file.write("".join(lines))
        except OSError as error:
            _print(f"{_who()}: no log: {log}: {error.strerror}")

    def _facts(self, seconds: float) -> list[dict[str, Any]]:
        found = self._found
        shared = {
            "rank": _rank(),
            "process": multiprocessing.current_process().name,
            "process_peak_bytes": process_peak(),
            "seconds": seconds,
        }
        facts = [
            {
                **shared,
                "model": one.module,
                "optimizers": one.optimizers,
                "steps": one.steps,
                "calls": one.calls,
                "peak_stored_bytes": one.stored_peak,
                "peak_plain_bytes": one.plain_peak,
                "encke_seconds": one.seconds,
                "why": one.why,
            }
            for one in found.attachments
        ]
        return facts or [
            {
                **shared,
                "model": None,
                "optimizers": found.optimizers_seen,
                "steps": 0,
                "calls": 0,
                "peak_stored_bytes": 0,
                "peak_plain_bytes": 0,
                "encke_seconds": 0.0,
                "why": self._why_nothing(),
            }
        ]


def process_peak() -> int:
    """The most bytes of memory that this process had at once; 0 where nobody knows."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# -- in words ------------------------------------------------------------------------------


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _who() -> str:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return f"encke, rank {_rank()}"
    name = multiprocessing.current_process().name
    return "encke" if name == "MainProcess" else f"encke, {name}"


def _stored_in_words(one: Attachment) -> str:
    ratio = f", {one.plain_peak / one.stored_peak:.2f}×" if one.stored_peak else ""
    return (
        f"{one.module} ({', '.join(one.optimizers)}), {_count(one.steps, 'step')}: at most "
        f"{one.stored_peak:,} bytes stored for backward in place of {one.plain_peak:,}{ratio}"
    )


def _why_in_words(one: Attachment) -> str:
    why = one.why
    return f" ({why})" if why else ""


def _peak_in_words() -> str:
    words = f"process peak {process_peak() / 2**20:,.0f} MiB"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        words += f", GPU peak {torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB"
    return words


def _time_in_words(found: Discovery, seconds: float) -> str:
    own = sum(one.seconds for one in found.attachments)
    return f"Encke took {own:.1f} s of {seconds:.1f} s" if own else f"{seconds:.1f} s"


def _workers_in_words(count: int) -> str:
    return f"{_count(count, 'process', 'es')} that it started report by themselves"


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"1 {what}" if number == 1 else f"{number:,} {what}{plural}"


def _table(one: Attachment) -> str:
    title = f"\n{one.module}, as stored in the last step:"
    if not len(one.records):
        return f"{title} nothing"
    table = render(one.records, plain=one.plain_peak, stored=one.stored_peak)
    return f"{title}\n{table}"
