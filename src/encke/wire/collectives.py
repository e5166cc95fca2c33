"""Compressed collectives on any tensor, in the order of one queue."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from encke.bound import Absolute, Bound, Lossless, RmsRelative, resolve
from encke.errors import BoundError, UnsupportedError
from encke.ops.select import select
from encke.wire.exchange import Exchange
from encke.wire.failure import ExchangeError, answered, new_group
from encke.wire.message import CODECS, Coder, Stretch, mixed
from encke.wire.order import Queue
from encke.wire.reduce import Reduction, Seconds, exact_mean, part_of

_DIMENSIONS = 8
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How messages are made.

    codec     "entropy" (smaller) or "fixed" (faster)
    dither    uniform, unbiased errors; False is plain rounding
    messages  "variable": sizes first, then the bytes; "fixed": slots of one size
    seed      of all dither; the same seed, the same bytes
    backend   of the kernels; None for the fastest there is
    """

    codec: str = "entropy"
    dither: bool = True
    messages: str = "variable"
    seed: int = 0
    backend: str | None = None

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise UnsupportedError(
                f"codec is {self.codec!r}, allowed on the wire are {', '.join(CODECS)}"
            )
        if self.messages not in ("variable", "fixed"):
            raise UnsupportedError(
                f"messages is {self.messages!r}, allowed are 'variable' and 'fixed'"
            )


class GroupCollectives:
    """`encke.wire.protocol.Collectives` on a process group that nothing else uses."""

    def __init__(self, group: Any, queue: Queue, settings: Settings) -> None:
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.world: int = dist.get_world_size(group)
        self.settings = settings
        self.queue = queue
        self.seconds = Seconds()
        self.exchange = Exchange(
            group, rank=self.rank, world=self.world, fixed=settings.messages == "fixed"
        )
        self.calls: dict[str, int] = {}

    # -- the protocol ------------------------------------------------------------------------

    def all_reduce_mean(
        self, tensor: Tensor, *, bound: Bound | None, name: str
    ) -> Future[Tensor]:
        _require_mean(tensor, bound)
        seed = self.next_seed(name)

        def work() -> Tensor:
            flat = in_working_precision(tensor)
            out = torch.empty_like(flat)
            error = self._agreed(bound, flat)
            if error is None:
                exact_mean(flat, group=self.group, world=self.world, out=out)
            else:
                self.reduction(flat.device).all_reduce(
                    flat, [Stretch(name, 0, flat.numel(), error)], name=name, seed=seed, out=out
                )
            return out.to(tensor.dtype).view(tensor.shape)

        return self.submit(work, tensor, what=repr(name))

    def reduce_scatter_mean(
        self, tensor: Tensor, *, bound: Bound | None, name: str
    ) -> Future[Tensor]:
        _require_mean(tensor, bound)
        seed = self.next_seed(name)

        def work() -> Tensor:
            flat = in_working_precision(tensor)
            whole = Stretch(name, 0, flat.numel(), self._agreed(bound, flat))
            parts = [[part_of(whole, p, self.world)] for p in range(self.world)]
            mean, _ = self.reduction(flat.device).reduce_scatter(
                flat, parts, name=name, seed=seed
            )
            return mean.to(tensor.dtype)

        return self.submit(work, tensor, what=repr(name))

    def all_gather(
        self, tensor: Tensor, *, bound: Bound | None, name: str
    ) -> Future[list[Tensor]]:
        if tensor.ndim > _DIMENSIONS:
            raise UnsupportedError(
                f"tensor has {tensor.ndim} dimensions, all_gather takes up to {_DIMENSIONS}"
            )
        seed = self.next_seed(name)

        def work() -> list[Tensor]:
            coder = self.coder(tensor.device)
            shape = [tensor.ndim, *tensor.shape, *[0] * (_DIMENSIONS - tensor.ndim)]
            head = torch.tensor(shape, dtype=torch.int64, device=tensor.device)
            message = torch.cat(
                [head.view(torch.uint8), self._encoded(tensor, bound, name, seed)]
            )
            found = []
            for received in self.exchange.to_all(message, name=name):
                n, *extents = received[: 8 * len(shape)].view(torch.int64).tolist()
                flat = tensor.new_empty(math.prod(extents[:n]))
                whole = [Stretch(name, 0, flat.numel())]
                coder.decode(received[8 * len(shape) :], whole, flat)
                found.append(flat.view(extents[:n]))
            return found

        return self.submit(work, tensor, what=repr(name))

    def broadcast(
        self, tensor: Tensor, *, source: int, bound: Bound | None, name: str
    ) -> Future[Tensor]:
        if not 0 <= source < self.world:
            raise UnsupportedError(f"source is {source}, the group has {self.world} ranks")
        seed = self.next_seed(name)

        def work() -> Tensor:
            sends = self.rank == source
            message = (
                self._encoded(tensor, bound, name, seed)
                if sends
                else torch.empty(0, dtype=torch.uint8, device=tensor.device)
            )
            if self.world > 1:
                size = torch.tensor([message.numel()], device=tensor.device)
                with answered(self.group):
                    dist.broadcast(size, group_src=source, group=self.group)
                    if not sends:
                        message = message.new_empty(int(size))
                    dist.broadcast(message, group_src=source, group=self.group)
                self.exchange.sent_bytes += message.numel() if sends else 0
            flat = tensor.new_empty(tensor.numel())
            self.coder(tensor.device).decode(message, [Stretch(name, 0, flat.numel())], flat)
            return flat.view(tensor.shape)

        return self.submit(work, tensor, what=repr(name))

    def subgroup(self, ranks: Sequence[int]) -> GroupCollectives:
        members = dist.get_process_group_ranks(self.group)
        group = new_group([members[rank] for rank in ranks], like=self.group)
        if self.rank not in ranks:
            return _Outside(ranks)
        return GroupCollectives(group, self.queue, self.settings)

    # -- what it is made of ------------------------------------------------------------------

    def submit(
        self,
        work: Callable[[], Any],
        tensor: Tensor,
        *,
        what: str = "",
        completes: int | None = None,
    ) -> Future[Any]:
        """Queue `work`, which reads `tensor`.

        what       is exchanged, for the error if a rank does not answer
        completes  the step of which it is the last exchange of gradients
        """

        def told() -> Any:
            try:
                result = work()
            except ExchangeError as error:
                raise error.during(what, self.queue.completed_step) from error.__cause__
            if completes is not None:
                self.queue.completed_step = completes
            return result

        return self.queue.submit(told, device=tensor.device)

    def coder(self, device: torch.device) -> Coder:
        kernels = select(device, self.settings.backend)
        return Coder(codec=self.settings.codec, dither=self.settings.dither, backend=kernels)

    def reduction(self, device: torch.device) -> Reduction:
        return Reduction(self.exchange, self.coder(device), self.seconds)

    def next_seed(self, name: str) -> int:
        """The seed of the next exchange under this name."""
        self.calls[name] = self.calls.get(name, 0) + 1
        return mixed(self.settings.seed, zlib.crc32(name.encode()), self.calls[name])

    def _encoded(self, tensor: Tensor, bound: Bound | None, name: str, seed: int) -> Tensor:
        """The message of one tensor, whose bound is resolved for it alone."""
        flat = tensor.detach().contiguous().view(-1)
        error = None
        if bound is not None and tensor.dtype in _FLOATS:
            error = resolve(bound, flat).error
            if error is None:
                raise BoundError(
                    f"bound is {bound!r}, the wire keeps Absolute, RangeRelative, RmsRelative "
                    "or Lossless bounds"
                )
        whole = [Stretch(name, 0, flat.numel(), error or None)]
        return self.coder(tensor.device).encode(flat, whole, seed=mixed(seed, self.rank))

    def _agreed(self, bound: Bound | None, flat: Tensor) -> float | None:
        """The absolute error that all ranks code with."""
        if bound is None or isinstance(bound, Lossless):
            return None
        if isinstance(bound, Absolute):
            return bound.error or None
        # A relative bound differs between ranks; the mean of squares over all is one number.
        square = flat.double().square().sum().view(1)
        if self.world > 1:
            with answered(self.group):
                dist.all_reduce(square, group=self.group)
        rms = math.sqrt(float(square) / max(1, self.world * flat.numel()))
        return bound.number * rms if math.isfinite(rms) and rms > 0 else None


class _Outside(GroupCollectives):
    """A subgroup that this rank is not in."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.rank, self.world = -1, len(ranks)
        self.ranks = tuple(ranks)

    def next_seed(self, name: str) -> int:
        raise UnsupportedError(f"this rank is not in the subgroup {self.ranks}")


def group_of_its_own(group: Any) -> Any:
    """A new process group of the same ranks, over the same backend; they all must ask."""
    return new_group(
        None if group is None else dist.get_process_group_ranks(group),
        like=group,
        backend=dist.get_backend(group),
        use_local_synchronization=group is not None,
    )


def in_working_precision(tensor: Tensor) -> Tensor:
    """The values as a flat contiguous tensor in which a mean may be taken."""
    flat = tensor.detach().contiguous().view(-1)
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()


def _require_mean(tensor: Tensor, bound: Bound | None) -> None:
    if tensor.dtype not in _FLOATS:
        allowed = ", ".join(str(d).removeprefix("torch.") for d in _FLOATS)
        raise UnsupportedError(f"tensor is {tensor.dtype}, a mean is taken of {allowed}")
    if not isinstance(bound, (Absolute, RmsRelative, Lossless, type(None))):
        raise BoundError(
            f"bound is {bound!r}; all ranks must code on one lattice, so give Absolute, "
            "RmsRelative, Lossless or None"
        )
