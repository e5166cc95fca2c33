"""Processes that a script starts, followed as the script itself is.

Scripts that train in workers (`torch.multiprocessing.spawn`, `multiprocessing.Process`) make
their model and optimizer there. While `follow_workers` is on, the target of each process that
is started runs under a `Discovery` of its own and reports at its end. Loaders of data are left
alone, and so is a worker that does not use torch: this module imports neither torch nor the
rest of Encke until a worker has.
"""

from __future__ import annotations

import multiprocessing.process
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

#: Modules whose processes do not train.
_LEFT_ALONE = ("torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource_")


class RunOptions:
    """What `encke run` was told, for whoever follows a process.

    report  of `encke.integrations.report.ReportOptions`
    """

    def __init__(
        self,
        *,
        tolerance: float | None,
        policy: str,
        slowdown: float | None = None,
        report: dict[str, Any],
    ) -> None:
        self.tolerance, self.policy, self.report = tolerance, policy, report
        self.slowdown = slowdown


class Worker:
    """The target of a process, with a `Discovery` around it."""

    def __init__(self, target: Callable[..., Any], options: RunOptions) -> None:
        self._target, self._options = target, options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "torch" not in sys.modules:
            return self._target(*args, **kwargs)
        from encke.integrations.following import follow

        with follow(self._options, only_if_trained=True):
            return self._target(*args, **kwargs)


def follow_workers(options: RunOptions, started: Callable[[], None]) -> Callable[[], None]:
    """Follow every process that is started from now on; gives what undoes that.

    started  called for each
    """
    process = multiprocessing.process.BaseProcess
    original = process.start

    @wraps(original)
    def start(self: Any) -> None:
        target = self._target
        if target is not None and not isinstance(target, Worker):
            home = f"{getattr(target, '__module__', '')}."
            if not home.startswith(_LEFT_ALONE):
                self._target = Worker(target, options)
                started()
        original(self)

    process.start = start  # type: ignore[method-assign]

    def undo() -> None:
        process.start = original  # type: ignore[method-assign]

    return undo
