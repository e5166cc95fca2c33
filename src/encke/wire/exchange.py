"""Messages of bytes between all ranks of a group, whatever their sizes.

Everything is built on the all-to-all: over gloo it reaches the speed of the link, where
`reduce_scatter_tensor` reaches half of it (docs/wire.md). A rank's message to itself is
handed over, not sent. Bytes travel as uint8, the one dtype that every backend takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from encke.wire.failure import answered
from encke.wire.pieces import all_to_all_bytes

_HEAD = 16  # bytes of a slot's head: length of this message, length of the sender's longest
_ROOM = 1.25  # a slot's size, of the longest message seen last time


class Exchange:
    """Sends one message to every rank and gives what every rank sent here.

    With `fixed=True` messages lie in slots of one size for all, known beforehand from the
    longest message of the last exchange under the same name: one round instead of two. What
    does not fit follows in a second round, which all ranks know of from the heads.
    """

    def __init__(self, group: Any, *, rank: int, world: int, fixed: bool = False) -> None:
        self.group = group
        self.rank = rank
        self.world = world
        self.fixed = fixed
        self.sent_bytes = 0
        self._slots: dict[str, int] = {}

    def all_to_all(self, messages: Sequence[Tensor], *, name: str) -> list[Tensor]:
        """What rank 0, 1, … sent here; `messages[p]` goes to rank p."""
        if self.world == 1:
            return list(messages)
        if self.fixed:
            return self._in_slots(messages, name)
        sizes = [0 if p == self.rank else m.numel() for p, m in enumerate(messages)]
        coming, longest = self._sizes_to_come(sizes, messages[0].device)
        return self._uneven(messages, sizes, coming, longest)

    def to_all(self, message: Tensor, *, name: str) -> list[Tensor]:
        """The message of every rank, in rank order."""
        return self.all_to_all([message] * self.world, name=name)

    def _sizes_to_come(self, sizes: list[int], device: torch.device) -> tuple[list[int], int]:
        """Bytes that come from each rank, and those of the longest message of all."""
        own = max(sizes)
        outgoing = torch.tensor([[size, own] for size in sizes], device=device).flatten()
        incoming = torch.empty_like(outgoing)
        with answered(self.group):
            dist.all_to_all_single(incoming, outgoing, group=self.group)
        found: list[list[int]] = incoming.view(-1, 2).tolist()
        return [size for size, _ in found], max(longest for _, longest in found)

    def _uneven(
        self, messages: Sequence[Tensor], sizes: list[int], coming: list[int], longest: int
    ) -> list[Tensor]:
        """`sizes[p]` bytes, all of the message or none, to rank p; `coming[p]` from it."""
        outgoing = [m[:size] for m, size in zip(messages, sizes, strict=True)]
        received = all_to_all_bytes(outgoing, coming, longest=longest, group=self.group)
        self.sent_bytes += sum(sizes)
        received[self.rank] = messages[self.rank]
        return received

    def _in_slots(self, messages: Sequence[Tensor], name: str) -> list[Tensor]:
        slot = self._slots.get(name, _HEAD)
        device = messages[0].device
        others = [p for p in range(self.world) if p != self.rank]
        longest = max(messages[p].numel() for p in others)
        fits = longest + _HEAD <= slot
        outgoing = torch.zeros((self.world, slot), dtype=torch.uint8, device=device)
        heads = torch.tensor(
            [[m.numel(), longest] for m in messages], dtype=torch.int64, device=device
        )
        outgoing[:, :_HEAD] = heads.view(torch.uint8)
        if fits:
            for p in others:
                outgoing[p, _HEAD : _HEAD + messages[p].numel()] = messages[p]
        slots = [outgoing[p] if p != self.rank else outgoing[p, :0] for p in range(self.world)]
        incoming = all_to_all_bytes(
            slots, [one.numel() for one in slots], longest=slot, group=self.group
        )
        incoming[self.rank] = outgoing[self.rank]
        self.sent_bytes += slot * len(others)
        seen = [one[:_HEAD].clone().view(torch.int64).tolist() for one in incoming]
        received = [incoming[p][_HEAD : _HEAD + seen[p][0]] for p in range(self.world)]
        late = [seen[p][1] + _HEAD > slot for p in range(self.world)]
        # Every rank has seen every sender's longest message, its own among them.
        largest = max(longest, *(seen[p][1] for p in others))
        if any(late):
            sizes = [
                m.numel() if not fits and p != self.rank else 0 for p, m in enumerate(messages)
            ]
            coming = [
                seen[p][0] if late[p] and p != self.rank else 0 for p in range(self.world)
            ]
            second = self._uneven(messages, sizes, coming, largest)
            received = [second[p] if late[p] else received[p] for p in range(self.world)]
        received[self.rank] = messages[self.rank]
        self._slots[name] = _HEAD + -(-int(_ROOM * largest) // 64) * 64
        return received
