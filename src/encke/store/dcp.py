"""`torch.distributed.checkpoint` with files of the store.

    dcp.save(state, storage_writer=encke.store.dcp.Writer(folder, loss=1e-3))
    dcp.load(state, storage_reader=encke.store.dcp.Reader(folder))

Each rank writes one file, under a name that no earlier save has used. `.metadata`, which is a
pickle of torch's, is replaced last and at once; files that it no longer names are removed
after that. So a save that is killed leaves the checkpoint before it whole. What `.metadata`
says of shapes and places is not covered by a checksum; every tensor is.
"""

from __future__ import annotations

import dataclasses
import io
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from encke.bound import Bound
from encke.errors import BoundError
from encke.store.errors import StoreError
from encke.store.moments import Moments
from encke.store.reader import StateReader
from encke.store.shards import rules_of_items
from encke.store.writer import write_state

_SUFFIX = ".encke"


class Place:
    """Where an item lies; torch's own reader is told to make way for ours."""

    def __init__(self, file: str, name: str) -> None:
        self.file, self.name = file, name

    def _refuse(self) -> NoReturn:
        raise StoreError(
            "this checkpoint was written by encke.store.dcp.Writer; load it with "
            "dcp.load(state, storage_reader=encke.store.dcp.Reader(folder))"
        )

    relative_path = offset = length = transform_descriptors = property(_refuse)


@dataclasses.dataclass(frozen=True)
class _Share:
    """What a rank's plan carries: the start of its files' names, and all weights' number."""

    prefix: str
    weights: int


class _KeepsOldMetadata(FileSystem):
    """A file system on which `.metadata` is replaced, never removed first."""

    def rm_file(self, path: Any) -> None:
        if not str(path).endswith(".metadata"):
            super().rm_file(path)


class Writer(FileSystemWriter):
    """Writes each rank's part of a state within errors.

    loss      relative rise of the loss that is allowed, by the second moments of an optimizer
              in the same state (`examples`, `level`: see `encke.store.plan`)
    bounds    instead: bounds by pattern of names; everything else is kept exactly
    moments   how far an optimizer's means may stray; `Moments()` with loss=
    """

    def __init__(
        self,
        path: str | Path,
        *,
        loss: float | None = None,
        bounds: Mapping[str, Bound] | None = None,
        moments: Moments | None = None,
        examples: int | None = None,
        level: float | None = None,
    ) -> None:
        super().__init__(path, overwrite=True)
        if loss is not None and not 0 < loss <= 1:
            raise BoundError(f"loss is {loss!r}, allowed is above 0 and up to 1")
        if loss is not None and bounds is not None:
            raise BoundError("give one of loss= and bounds=")
        self.fs = _KeepsOldMetadata()
        self._loss, self._bounds = loss, dict(bounds or {})
        self._moments = moments if moments is not None or loss is None else Moments()
        self._examples, self._level = examples, level

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self.fs.mkdir(self.path)
        if self.rank is not None and not self.use_collectives:
            return dataclasses.replace(plan, storage_data=_Share(f"__{self.rank}_", 0))
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        weights = sum(_weights(item) for plan in plans for item in plan.items)
        return [
            dataclasses.replace(plan, storage_data=_Share(f"__{rank}_", weights))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        share: _Share = plan.storage_data
        file = f"{share.prefix}{secrets.token_hex(8)}{_SUFFIX}"
        items: dict[str, Tensor] = {}
        for item in plan.items:
            data = planner.resolve_data(item)
            if isinstance(data, io.BytesIO):
                raw = bytearray(data.getbuffer())
                data = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0)
            items[_name(item.index)] = data.detach()
        weights = share.weights or sum(_weights(item) for item in plan.items)
        rules, report = rules_of_items(
            items,
            loss=self._loss,
            bounds=self._bounds,
            moments=self._moments,
            examples=self._examples,
            level=self._level,
            weights=weights,
        )
        target = Path(self.path) / file
        write_state(target, items, rules, report=report)
        size = target.stat().st_size
        results = [
            WriteResult(
                index=item.index,
                size_in_bytes=size if number == 0 else 0,
                storage_data=Place(file, _name(item.index)),
            )
            for number, item in enumerate(plan.items)
        ]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        kept = {result.storage_data.file for several in results for result in several}
        prefixes = {name.split("_", 3)[2] for name in kept}
        for path in Path(self.path).glob(f"__*{_SUFFIX}"):
            own = self.use_collectives or path.name.split("_", 3)[2] in prefixes
            if own and path.name not in kept:
                path.unlink(missing_ok=True)


class Reader(FileSystemReader):
    """Reads what `Writer` wrote, on any number of ranks."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[Any]] = {}
        for request in plan.items:
            place = self.storage_data[request.storage_index]
            if not isinstance(place, Place):
                raise StoreError(
                    f"{self.path} was not written by encke.store.dcp.Writer; load it with "
                    "torch's own FileSystemReader"
                )
            by_file.setdefault(place.file, []).append((place, request))
        with ExitStack() as opened:
            stored = {
                file: opened.enter_context(StateReader(Path(self.path) / _safe(file)))
                for file in by_file
            }
            for file, requests in by_file.items():
                for place, _ in requests:  # all checks before the first value is changed
                    stored[file].check(place.name)
            for file, requests in by_file.items():
                for place, request in requests:
                    _fill(stored[file].tensor(place.name), request, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _fill(tensor: Tensor, request: Any, planner: LoadPlanner) -> None:
    if request.type == LoadItemType.BYTE_IO:
        planner.load_bytes(request, io.BytesIO(tensor.to(torch.uint8).numpy().tobytes()))
        return
    for dimension, (start, length) in enumerate(
        zip(request.storage_offsets, request.lengths, strict=True)
    ):
        tensor = tensor.narrow(dimension, start, length)
    target = planner.resolve_tensor(request).detach()
    if target.size() != tensor.size():
        raise StoreError(
            f"{request.storage_index.fqn} has {list(tensor.size())} in the checkpoint and "
            f"{list(target.size())} here"
        )
    target.copy_(tensor)
    planner.commit_tensor(request, target)


def _name(index: MetadataIndex) -> str:
    """A name of its own for each item: shards of one tensor differ in their offset."""
    offset = ",".join(map(str, index.offset)) if index.offset is not None else ""
    return f"{index.fqn}@{offset}"


def _safe(file: str) -> str:
    if "/" in file or "\0" in file or file.startswith(".."):
        raise StoreError(f"the checkpoint names the file {file!r}, which is not in its folder")
    return file


def _weights(item: WriteItem) -> int:
    """Values of a tensor that is no state of an optimizer, by its shard."""
    if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
        return 0
    if not item.tensor_data.properties.dtype.is_floating_point or ".state." in item.index.fqn:
        return 0
    return item.tensor_data.chunk.sizes.numel()
