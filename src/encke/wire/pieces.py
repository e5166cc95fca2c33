"""An all-to-all of bytes, cut in pieces of which a few are under way at a time.

Where much travels both ways over one TCP connection, an all-to-all of megabytes takes up to
twice as long as the link needs, presumably because acknowledgements queue behind the data of
the other direction. Pieces keep both directions busy (docs/wire.md has the figures).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from encke.wire.failure import answered

#: Bytes that a rank sends in one piece, to all others together.
PIECE = 384_000
_UNDER_WAY = 2


def all_to_all_bytes(
    outgoing: Sequence[Tensor], coming: Sequence[int], *, longest: int, group: Any
) -> list[Tensor]:
    """What each rank sent here; `outgoing[p]`, bytes, goes to rank p.

    coming   bytes that come from each rank
    longest  bytes of the longest message between any two ranks: the same on every rank
    """
    world = len(outgoing)
    sizes = [message.numel() for message in outgoing]
    piece = max(1, PIECE // max(1, world - 1))
    if longest <= piece or dist.get_backend(group) != "gloo":
        piece = max(1, longest)
    rounds = range(0, longest, piece)
    if len(rounds) == 1:
        incoming = outgoing[0].new_empty(sum(coming))
        with answered(group):
            dist.all_to_all_single(
                incoming, _joined(outgoing), list(coming), sizes, group=group
            )
        return list(torch.split(incoming, list(coming)))
    received = [message.new_empty(size) for message, size in zip(outgoing, coming, strict=True)]
    under_way: list[tuple[Any, Tensor, list[Tensor]]] = []
    for start in rounds:
        parts = [message[start : start + piece] for message in outgoing]
        places = [message[start : start + piece] for message in received]
        sent, come = [p.numel() for p in parts], [p.numel() for p in places]
        busy = [place for place in places if place.numel()]
        # With one other rank the bytes arrive where they belong.
        into = busy[0] if len(busy) == 1 else outgoing[0].new_empty(sum(come))
        with answered(group):
            work = dist.all_to_all_single(
                into, _joined(parts), come, sent, group=group, async_op=True
            )
        under_way.append((work, into, busy))
        if len(under_way) == _UNDER_WAY:
            _finish(*under_way.pop(0), group)
    for one in under_way:
        _finish(*one, group)
    return received


def _joined(parts: Sequence[Tensor]) -> Tensor:
    full = [part for part in parts if part.numel()]
    if len(full) == 1:
        return full[0].contiguous()
    return torch.cat([parts[0].new_empty(0), *full])


def _finish(work: Any, into: Tensor, places: list[Tensor], group: Any) -> None:
    with answered(group):
        work.wait()
    if len(places) > 1:
        parts = torch.split(into, [place.numel() for place in places])
        for place, part in zip(places, parts, strict=True):
            place.copy_(part)
