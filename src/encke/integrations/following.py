"""Following one process from its start to its report: that of `encke run`, or a worker's."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from encke.control.arguments import slowdown as checked_slowdown
from encke.control.arguments import tolerance as checked_tolerance
from encke.integrations.report import Reporter, ReportOptions
from encke.integrations.script import Discovery, MakePolicy
from encke.integrations.workers import RunOptions, follow_workers

#: The one that is followed in this process, and the process: a fork inherits it.
_running: list[tuple[int, Discovery]] = []


@contextmanager
def follow(options: RunOptions, *, only_if_trained: bool = False) -> Iterator[Discovery]:
    """Compress what trains in this process while inside, and report at the end.

    only_if_trained  whether nothing is said where nothing was found to train
    """
    make_policy = policy_named(options.policy, tolerance=options.tolerance)
    tolerance = 0.01 if options.tolerance is None else checked_tolerance(options.tolerance)
    forked = _running.pop()[1] if _running and _running[-1][0] != os.getpid() else None
    slowdown = options.slowdown
    checked_slowdown(slowdown)
    with Discovery(tolerance=tolerance, make_policy=make_policy, slowdown=slowdown) as found:
        if forked is not None:
            found.take_over(forked)
        _running.append((os.getpid(), found))
        report = Reporter(found, ReportOptions(**options.report))
        undo = [follow_workers(options, report.count_worker), _report_if_terminated(report)]
        try:
            yield found
        finally:
            _running.pop()
            for one in undo:
                one()
            if found.attachments or found.optimizers_seen or not only_if_trained:
                report.finish()


def _report_if_terminated(report: Reporter) -> Callable[[], None]:
    """Report before SIGTERM ends the process, as `timeout` sends; gives what undoes that."""
    process = os.getpid()
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        return lambda: None

    def end(number: int, _frame: FrameType | None) -> None:
        if os.getpid() == process:  # not in a process that was forked
            report.finish()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # so that the parent sees what ended it

    signal.signal(signal.SIGTERM, end)

    def undo() -> None:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return undo


def policy_named(text: str, *, tolerance: float | None = None) -> MakePolicy | None:
    """What makes the policy that `encke run --policy` names; None for the controller."""
    from encke.bound import Lossless
    from encke.bound.kinds import KINDS, from_code
    from encke.control import Comet, Fixed, GroupBits
    from encke.errors import UnsupportedError, did_you_mean

    if text == "adaptive":
        return None
    if tolerance is not None:
        raise UnsupportedError(
            f"--tolerance {tolerance:g} is for the policy adaptive, but --policy is {text!r}; "
            "give one of them"
        )
    if text == "comet":
        return lambda model, optimizers: Comet(model=model, optimizers=optimizers)
    if text == "lossless":
        return lambda _model, _optimizers: Fixed(Lossless())
    kind, _, written = text.partition(":")
    codes = {cls.kind: code for code, cls in KINDS.items() if cls is not Lossless}
    try:
        number = float(written)
    except ValueError:
        number = None
    if number is None or kind not in {"bits", *codes}:
        allowed = ", ".join(f"{name}:NUMBER" for name in ("bits", *codes))
        meant = did_you_mean(kind, ["adaptive", "comet", "lossless", "bits", *codes])
        raise UnsupportedError(
            f"--policy is {text!r}, allowed are adaptive, comet, lossless, {allowed}{meant}"
        )
    if kind == "bits":
        GroupBits(number)  # raises now, and not in the script, if it is not allowed
        return lambda _model, _optimizers: GroupBits(number)
    bound = from_code(codes[kind], number)
    return lambda _model, _optimizers: Fixed(bound)
