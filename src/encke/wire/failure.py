"""Ranks that do not answer: how long they are waited for, and how they are told apart.

A collective that fails says that some rank did not answer, not which one. So each rank that
gives up leaves a mark in the group's store, and after a moment the ranks without one are those
that did not answer: stopped, killed, or somewhere else in the program.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from encke.errors import EnckeError

_MARK = "encke.wire.gave-up"
#: Seconds that the other ranks have to give up too; a share of the timeout between these.
_LEAST, _MOST = 1.0, 10.0


class ExchangeError(EnckeError, RuntimeError):
    """Something that ranks exchange was not answered by all of them.

    cause           what torch.distributed said
    silent          ranks of the default group that did not answer; None where it is not known
    what            that was exchanged: a bucket with its parameters, or the name of a tensor
    completed_step  the last step whose gradients were all exchanged, from 1; None where no
                    gradients are exchanged
    """

    def __init__(
        self,
        cause: str,
        *,
        silent: Sequence[int] | None = None,
        what: str = "",
        completed_step: int | None = None,
    ) -> None:
        self.cause = cause
        self.silent = None if silent is None else tuple(silent)
        self.what = what
        self.completed_step = completed_step
        super().__init__(self._in_words())

    def during(self, what: str, completed_step: int | None) -> ExchangeError:
        """The same error with what was being exchanged."""
        return ExchangeError(
            self.cause, silent=self.silent, what=what, completed_step=completed_step
        )

    def _in_words(self) -> str:
        if self.silent is None:
            who = (
                "some rank did not answer, nor did the group's store, which knows which (it is "
                "in the process of rank 0, unless torchrun started the ranks)"
            )
        elif not self.silent:
            who = "all ranks have given up, so the connection between them failed"
        else:
            plural = "s" if len(self.silent) > 1 else ""
            who = f"rank{plural} {', '.join(map(str, self.silent))} did not answer"
        during = f" during the exchange of {self.what}" if self.what else ""
        known = self.completed_step is not None
        step = f"; last completed step: {self.completed_step}" if known else ""
        return (
            f"{who}{during}{step}. Check whether such a process is stopped, has ended, or "
            "waits for something else; timeout= of init_process_group says how long it is "
            f"waited for. torch.distributed said: {self.cause}"
        )


@contextmanager
def answered(group: Any, what: str = "") -> Iterator[None]:
    """Raise `ExchangeError` where a collective of `group` in this block fails."""
    try:
        yield
    except EnckeError:
        raise
    except RuntimeError as error:  # torch's own errors of torch.distributed are some, too
        raise ExchangeError(str(error), silent=_silent_ranks(group), what=what) from error


def timeout_of(group: Any) -> timedelta | None:
    """How long the collectives of a group wait; None where torch does not say.

    None as the group means the default one.
    """
    with suppress(AttributeError, RuntimeError):
        timeout: timedelta = _whole(group)._get_backend(_device(group)).options._timeout
        return timeout
    return None


def new_group(ranks: Sequence[int] | None = None, *, like: Any = None, **options: Any) -> Any:
    """A process group of these ranks of the default group, with the timeout of `like`.

    torch gives new groups a timeout of 10 or 30 minutes, whatever the default group has.
    """
    with answered(like, "a new process group"):
        return dist.new_group(
            None if ranks is None else list(ranks), timeout=timeout_of(like), **options
        )


def _whole(group: Any) -> Any:
    """The group itself; the default group for None."""
    return dist.group.WORLD if group is None else group


def _device(group: Any) -> torch.device:
    backend = dist.get_backend(group)
    return torch.device("cuda" if backend == "nccl" else "cpu")


def _silent_ranks(group: Any) -> list[int] | None:
    """Ranks that leave no mark in the store in time; None if the store does not answer.

    The store may be in the very process that does not answer, so it is asked from a thread
    that nobody has to wait for.
    """
    timeout = timeout_of(group)
    patience = _MOST if timeout is None else min(_MOST, timeout.total_seconds() / 4)
    deadline = time.monotonic() + max(_LEAST, patience)
    found: list[list[int]] = []
    asking = threading.Thread(
        target=_ask, args=(group, deadline, found), name="encke.wire.silent", daemon=True
    )
    asking.start()
    asking.join(deadline - time.monotonic() + _LEAST)
    if found:
        return found[0]
    others = [r for r in dist.get_process_group_ranks(_whole(group)) if r != dist.get_rank()]
    return others if len(others) == 1 else None


def _ask(group: Any, deadline: float, found: list[list[int]]) -> None:
    with suppress(Exception):  # whatever it is, then it is not known who is silent
        whole = _whole(group)
        store = whole.get_group_store().clone()
        store.set(f"{_MARK}.{dist.get_rank()}", b"1")
        silent = list(dist.get_process_group_ranks(whole))
        while silent:
            silent = [rank for rank in silent if not store.check([f"{_MARK}.{rank}"])]
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        found.append(silent)
