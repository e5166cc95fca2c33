"""Streams that only pretend: everything runs at once, on the CPU, and every order is checked.

Each torch operation counts as queued on the current stream. Whether it may run then is
decided as on a real device: a stream knows how far another has come only through events it
has waited for. Two things are faults: using what another stream writes, or overwriting what
it reads, without having waited for it; and letting go of memory that another stream still
uses, unless it was marked for that stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MAIN, SIDE = "main", "side"
Clock = dict[str, int]


@dataclass
class Memory:
    """One storage: where it belongs, who wrote it last, and who used it when."""

    reference: StorageWeakRef
    home: str
    writer: tuple[str, int]
    uses: Clock = field(default_factory=dict)
    marked: set[str] = field(default_factory=set)


class Simulated(TorchDispatchMode):
    """The streams of the CPU as a device; enter it around what is to be checked."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.queued: Clock = {MAIN: 0, SIDE: 0}
        #: What each stream knows of how far the others have come.
        self._known: dict[str, Clock] = {MAIN: {MAIN: 0, SIDE: 0}, SIDE: {MAIN: 0, SIDE: 0}}
        self._now = MAIN
        self._memory: dict[int, Memory] = {}

    # -- the protocol of encke.tape.transfer.streams.Streams ------------------------------

    def current(self) -> str:
        return self._now

    def side(self) -> str:
        return SIDE

    @contextmanager
    def use(self, stream: str) -> Iterator[None]:
        self.collect()
        before, self._now = self._now, stream
        yield
        self.collect()
        self._now = before

    def record(self, stream: str) -> Clock:
        self.collect()
        return dict(self._known[stream])

    def wait(self, stream: str, event: Clock) -> None:
        self.collect()
        for other, time in event.items():
            self._known[stream][other] = max(self._known[stream][other], time)

    def keep(self, t: Tensor, stream: str) -> None:
        self._of(t).marked.add(stream)

    def host_room(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8)

    # -- checking -------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.collect()
        kwargs = kwargs or {}
        time = self._tick()
        written = {
            id(value)
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        }
        for t in tree_leaves((args, kwargs)):
            if isinstance(t, Tensor):
                self._check_use(func, t, writes=id(t) in written)
        result = func(*args, **kwargs)
        for t in tree_leaves(result):
            if isinstance(t, Tensor):
                self._of(t, time)
        for t in tree_leaves((args, kwargs)):
            if isinstance(t, Tensor) and id(t) in written:
                self._of(t).writer = self._now, time
        return result

    def _tick(self) -> int:
        self.queued[self._now] += 1
        self._known[self._now][self._now] = self.queued[self._now]
        return self.queued[self._now]

    def _of(self, t: Tensor, time: int = 0) -> Memory:
        storage = t.untyped_storage()
        found = self._memory.get(storage._cdata)
        if found is not None and found.reference.expired():
            self.collect()
            found = None
        if found is None:
            # Constants come into being unseen: they belong to the stream that first uses them.
            found = Memory(StorageWeakRef(storage), self._now, (self._now, time))
            self._memory[storage._cdata] = found
        return found

    def _check_use(self, func: Any, t: Tensor, *, writes: bool) -> None:
        memory = self._of(t)
        known = self._known[self._now]
        writer, time = memory.writer
        if known[writer] < time:
            self.faults.append(f"{func} on {self._now}: used before {writer} has written it")
        if writes and any(known[user] < used for user, used in memory.uses.items()):
            self.faults.append(f"{func} on {self._now}: overwrites what another stream reads")
        memory.uses[self._now] = self.queued[self._now]

    def collect(self) -> None:
        """Look at memory that was let go of since the last time."""
        for key, memory in list(self._memory.items()):
            if not memory.reference.expired():
                continue
            del self._memory[key]
            for user, used in memory.uses.items():
                if user not in memory.marked and self._known[memory.home][user] < used:
                    self.faults.append(
                        f"memory of {memory.home} is let go while {user} may still use it"
                    )
