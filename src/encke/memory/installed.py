"""Installing the pool, and what a program can ask it."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from encke.memory import limits
from encke.memory.statistics import Statistics

#: Set to 0, it keeps the pool from being installed.
SWITCH = "ENCKE_POOL"
#: With it, torch wants huge pages for its blocks, which the pool does not use.
_HUGE_PAGES = "C10_THP_MEM_ALLOC_ENABLE"


class Pool:
    """The one pool of this process; `encke.memory.pool()` gives it.

    reason   why the pool is not installed, as a sentence without a full stop; empty if it is
    """

    def __init__(self) -> None:
        self.reason = "encke.memory.install() has not been called"
        self._module: ModuleType | None = None

    @property
    def is_installed(self) -> bool:
        """Whether torch's new CPU blocks come from the pool."""
        return self._module is not None and bool(self._module.is_installed())

    def statistics(self) -> Statistics:
        """The pool's numbers now; all zero if it was never installed."""
        if self._module is None:
            return Statistics()
        return Statistics(**self._module.statistics())

    def reset_peak(self) -> None:
        """Let `peak_live` and `peak_resident` start again from what is live and resident."""
        if self._module is not None:
            self._module.reset_peak()

    def take_high_mark(self) -> int:
        """The most live bytes since this was called last; 0 if the pool was never installed."""
        return 0 if self._module is None else int(self._module.take_high_mark())

    def expect_long_life(self) -> None:
        """Say that the next tensor that this thread makes will live for long.

        It gets a place among others like it, so that tensors with a short life find theirs.
        """
        if self._module is not None:
            self._module.expect_long_life()

    def trim(self) -> int:
        """Give every free page back to the system at once; how many bytes that was."""
        return 0 if self._module is None else int(self._module.trim())

    def install(self) -> bool:
        """See `encke.memory.install`."""
        self.reason = self._try_install()
        return self.reason == ""

    def uninstall(self) -> None:
        """See `encke.memory.uninstall`."""
        if self._module is not None and self._module.is_installed():
            self._module.uninstall()
            self.reason = "encke.memory.uninstall() was called"

    def _try_install(self) -> str:
        if os.environ.get(SWITCH) == "0":
            return f"{SWITCH}=0 switches the pool off"
        if os.environ.get(_HUGE_PAGES, "0") not in ("", "0"):
            return f"{_HUGE_PAGES} asks torch for huge pages, which the pool does not use"
        import torch  # noqa: F401 - loads the library whose blocks the pool serves

        try:
            module = importlib.import_module("encke.memory._pool")
        except ImportError as error:
            return f"the native module of the pool is not there: {error}"
        reserve = limits.memory()
        if reserve is None:
            return "the system does not tell how much memory it has"
        if self._module is None and (refusal := limits.refusal(reserve)):
            return refusal
        reason = str(module.install(reserve))
        if not reason:
            self._module = module
        return reason


_pool = Pool()


def pool() -> Pool:
    """The pool of this process, installed or not."""
    return _pool


def install() -> bool:
    """Let torch's new CPU blocks of 64 KB or more come from the pool; whether they do.

    `encke.memory.pool().reason` says why not. Then nothing has changed. Tensors that are there
    already stay where they are. May be called at any time, from any thread, and more than once.
    """
    return _pool.install()


def uninstall() -> None:
    """Let torch's new CPU blocks come from the C library again.

    Tensors in the pool stay valid. Their memory goes back to the system when they are freed.
    """
    _pool.uninstall()
