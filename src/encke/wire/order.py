"""One queue for everything that a rank exchanges.

Two collectives that meet in different order on two ranks wait for each other for ever.
DDP starts one from its backward thread, K-FAC from the main thread, and callbacks of
futures start theirs whenever the network is done. Here all of them become entries of one
queue that one thread works off, and the group they use is used by nobody else.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.futures import Future

from encke.errors import EnckeError

Result = TypeVar("Result")


class ClosedError(EnckeError, RuntimeError):
    """Something was to be exchanged after the end, or after an exchange had failed."""


class Queue:
    """Works off what is submitted, first in, first out, in a thread of its own.

    After a failure nothing more is carried out: the ranks no longer agree about what comes
    next. What is still queued, or is submitted later, fails with the same cause.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._entries: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._failure: BaseException | None = None
        self._closed = False
        #: The last step, counted from 1, whose gradients were all exchanged.
        self.completed_step = 0

    def submit(
        self, work: Callable[[], Result], *, device: torch.device | None = None
    ) -> Future[Result]:
        """The future result of `work`; on a GPU it is ordered with the caller's stream."""
        on_gpu = device is not None and device.type == "cuda"
        future: Future[Result] = Future(devices=[device]) if on_gpu else Future()  # type: ignore[list-item]
        if self._closed:
            future.set_exception(ClosedError(f"{self._name} is closed"))  # type: ignore[arg-type]
            return future
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run,
                    args=(torch.get_num_threads(),),
                    name=self._name,
                    daemon=True,
                )
                self._thread.start()
        if on_gpu:
            assert device is not None
            work = _after_stream(work, device)
        self._entries.put((work, future))
        return future

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        self._closed = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._entries.put(None)
            self._thread.join()
            self._thread = None

    def _run(self, threads: int) -> None:
        torch.set_num_threads(threads)  # OpenMP counts for each thread that calls it
        while (entry := self._entries.get()) is not None:
            work, future = entry
            if self._failure is not None:
                future.set_exception(_following(self._failure))
                continue
            try:
                result = work()
            except BaseException as error:
                self._failure = error
                future.set_exception(error)
            else:
                future.set_result(result)


def _following(failure: BaseException) -> BaseException:
    error = ClosedError(f"an earlier exchange failed, so this one was not begun: {failure}")
    error.__cause__ = failure
    return error


def _after_stream(work: Callable[[], Result], device: torch.device) -> Callable[[], Result]:
    """`work` on a stream of its own that first waits for what the caller has started."""
    ready = torch.cuda.current_stream(device).record_event()

    def ordered() -> Result:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_event(ready)
        with torch.cuda.stream(stream):
            return work()

    return ordered
