"""A record of every step and of every kept tensor, as JSON lines or on a dashboard.

What the fields mean is written in docs/telemetry.md; `VERSION` is the version of that
schema. A step is complete when the next one begins, since by then its backward has told what
errors did: its records are made then, or when the log is closed.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from encke.errors import UnsupportedError
from encke.tape import peak
from encke.tape.observe.records import Record
from encke.tape.policy import GradientEffect, Site

if TYPE_CHECKING:
    from encke.tape.tape import Tape

log = logging.getLogger("encke")

VERSION = 1
_FULL = 1 << 16  # bytes of lines that are written at the latest
_STALE = 5.0  # seconds after which lines are written, so that a run can be followed

Row = dict[str, Any]


class Writer(Protocol):
    """What is used of TensorBoard's `SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...
    def flush(self) -> object: ...


Target = str | os.PathLike[str] | Callable[[Row], object] | Writer


class Telemetry:
    """Makes the records of a tape and hands them on. `Tape.log_to` makes one.

    every    steps between records of the step
    tensors  steps between records of every tensor; observed steps have them too
    """

    def __init__(self, target: Target, *, every: int = 1, tensors: int = 50) -> None:
        for name, given in (("every", every), ("tensors", tensors)):
            if not isinstance(given, int) or given < 1:
                raise UnsupportedError(f"{name} is {given!r}, allowed are steps from 1")
        self._sink = _sink(target)
        self._every, self._tensors = every, tensors
        self._step: Row | None = None
        self._records: list[Record] = []
        self._effects: dict[Site, list[GradientEffect]] = {}
        self._began = 0.0
        self._closed = False
        #: What the policy says of the gradients' error.
        self.told: Callable[[], dict[str, Any]] = dict

    # -- what the tape tells -------------------------------------------------------------

    def begin(self, step: int) -> None:
        """A forward pass starts: the step before is complete."""
        if self._closed:
            return
        self._complete()
        self._began = time.perf_counter()
        self._step = {"version": VERSION, "kind": "step", "step": step, "time": time.time()}

    def end_forward(self, records: Iterable[Record], *, stored: int, plain: int) -> None:
        """Everything is kept that backward will ask for."""
        self._records = list(records)
        told = self.told()
        if self._step is None or self._step["step"] % self._every:
            return
        self._step |= {
            "forward_seconds": time.perf_counter() - self._began,
            "stored": stored,
            "plain": plain,
            "ratio": _ratio(plain, stored),
            "tensors": len(self._records),
            "resident": peak.resident(),
            "resident_peak": peak.resident_peak(),
            "cuda_peak": peak.cuda_peak(),
            "tolerance": told.get("asked"),
            "error_predicted": told.get("predicted"),
            "error_measured": told.get("measured"),
            "error_worst": told.get("worst"),
            "error_worst_parameter": told.get("parameter") or None,
        }

    def hear(self, effect: GradientEffect) -> None:
        """What an error did to gradients."""
        if self._step is not None:
            self._effects.setdefault(effect.site, []).append(effect)

    # -- what follows --------------------------------------------------------------------

    def flush(self) -> None:
        """Hand on every record of the steps that are complete."""
        self._sink.flush()

    def close(self) -> None:
        """Hand on everything, the last step included; nothing is recorded after."""
        self._complete()
        self._sink.flush()
        self._closed = True

    def _complete(self) -> None:
        step, self._step = self._step, None
        records, self._records = self._records, []
        effects, self._effects = self._effects, {}
        if step is None:
            return
        number = step["step"]
        if "stored" in step:
            step["seconds"] = time.perf_counter() - self._began
            self._sink.take(_finite(step))
        if effects or number == 1 or number % self._tensors == 0:
            for record in records:
                self._sink.take(_finite(tensor_row(number, record, effects.get(record.site))))


def tensor_row(step: int, record: Record, effects: list[GradientEffect] | None = None) -> Row:
    """The record of one tensor, as docs/telemetry.md has it."""
    uses = [_effect_row(effect) for effect in effects or ()]
    measured = [use["measured"] for use in uses]
    return {
        "version": VERSION,
        "kind": "tensor",
        "step": step,
        "site": _site_row(record.site),
        "shape": list(record.shape),
        "how": record.how,
        "codec": record.codec,
        "bound": record.error,
        "plain": record.plain,
        "stored": record.stored,
        "ratio": _ratio(record.plain, record.stored),
        "why": record.why,
        "of": None if record.of is None else _site_row(record.of),
        "predicted": sum(use["predicted"] for use in uses) if uses else None,
        "measured": None if not uses or None in measured else sum(measured),
        "uses": uses,
    }


def _effect_row(effect: GradientEffect) -> Row:
    own, stream = effect.measured or (None, None)
    return {
        "consumer": _site_row(effect.consumer),
        "parameter": effect.parameter,
        "gradient": effect.parameter_square,
        "predicted": effect.predicted,
        "measured": own,
        "predicted_stream": effect.stream,
        "measured_stream": stream,
    }


def _site_row(site: Site) -> Row:
    return {"module": site.module, "op": site.op, "role": site.role, "index": site.index}


def _ratio(plain: int, stored: int) -> float | None:
    return plain / stored if stored else None


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list) else value


# -- where records go --------------------------------------------------------------------


class _Sink(Protocol):
    def take(self, row: Row) -> None: ...
    def flush(self) -> None: ...


class Lines:
    """A file of JSON lines, appended to.

    Lines are gathered and written a few dozen KiB at a time, whole. A line that a killed
    process left unfinished is cut off when the file is opened again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._pending: list[bytes] = []
        self._size = 0
        self._written = time.monotonic()
        self._process = os.getpid()
        self._failed = False
        self._path.touch()
        _cut_unfinished(self._path)

    def take(self, row: Row) -> None:
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self._pending.append(line)
        self._size += len(line)
        if self._size >= _FULL or time.monotonic() - self._written >= _STALE:
            self.flush()

    def flush(self) -> None:
        self._written = time.monotonic()
        # A forked child has a copy of the lines that its parent will write.
        if self._pending and not self._failed and os.getpid() == self._process:
            try:
                self._append(b"".join(self._pending))
            except OSError as error:
                self._failed = True  # training is worth more than its log
                log.warning("%s: %s; nothing more is logged there", self._path, error)
        self._pending, self._size = [], 0

    def _append(self, data: bytes) -> None:
        end = self._path.stat().st_size
        try:
            with self._path.open("ab") as file:
                file.write(data)
        except BaseException:  # an interrupt, too, may come amid a line
            os.truncate(self._path, end)
            raise


def _cut_unfinished(path: Path) -> None:
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _FULL)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.truncate(end)


class _Call:
    """Every record goes to a function, as a dict."""

    def __init__(self, function: Callable[[Row], object]) -> None:
        self._function = function

    def take(self, row: Row) -> None:
        self._function(row)

    def flush(self) -> None:
        """Nothing waits."""


class _Scalars:
    """Curves of stored and plain bytes and of the ratio, and of the bound at every site."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def take(self, row: Row) -> None:
        if row["kind"] == "step":
            names, place = ["stored", "plain", "ratio"], ""
        else:
            lossy = row["how"] == "lossy"
            names, place = ["bound"] if lossy else [], f"/{Site(**row['site'])}"
        for name in names:
            if row[name] is not None:
                self._writer.add_scalar(f"encke/{name}{place}", row[name], row["step"])

    def flush(self) -> None:
        self._writer.flush()


def _sink(target: Target) -> _Sink:
    if isinstance(target, str | os.PathLike):
        return Lines(target)
    if callable(getattr(target, "add_scalar", None)):
        return _Scalars(target)  # type: ignore[arg-type]
    if callable(target):
        return _Call(target)
    raise UnsupportedError(
        f"the log is to go to a {type(target).__name__}; allowed are a path, a function that "
        "takes a dict, or TensorBoard's SummaryWriter"
    )


class _Told:
    """What a tape's policy says of the gradients' error; it does not keep the tape alive."""

    def __init__(self, tape: Tape) -> None:
        self._tape = weakref.ref(tape)

    def __call__(self) -> dict[str, Any]:
        tape = self._tape()
        told = getattr(tape.policy, "told", None) if tape is not None else None
        return {} if told is None else dict(told())


def log_to(tape: Tape, target: Target, *, every: int, tensors: int) -> Telemetry:
    """Record `tape` from its next step on; see `Tape.log_to`."""
    telemetry = Telemetry(target, every=every, tensors=tensors)
    telemetry.told = _Told(tape)
    tape.logs.append(telemetry)
    tape.listeners.append(telemetry.hear)
    # It runs when the tape is gone or the interpreter ends, and only once.
    finish = weakref.finalize(tape, telemetry.close)
    tape.detachers.append(finish)
    return telemetry
