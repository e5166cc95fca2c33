"""Graphs whose nodes are classified: Cora's papers and Wikipedia's squirrel pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from encke.errors import UnsupportedError
from encke.study.data.arrays import Array, read_npz
from encke.study.data.errors import BrokenDataError
from encke.study.data.locate import first_file
from encke.study.data.source import Source, check_split
from encke.study.zoo.adjacency import KINDS, normalised_adjacency
from encke.study.zoo.batch import Batch
from encke.study.zoo.samples import IGNORED

_TRAFFIC_CLASSES = 5
_ADVICE = (
    "Make {file} of `edges` (m, 2), `features` (k, 2) as row and column of every one, and "
    "{labels}."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph(Source):
    """One graph. An example is a labelled node; a batch has the whole graph as its input.

    Targets of nodes outside the batch are ignored by the loss. A batch size of at least the
    number of nodes gives one batch, as usual for full-graph training. `kind` is the
    adjacency's: "symmetric" for GCN, "mean" for GraphSAGE.
    """

    name: str
    edges: Tensor
    features: Tensor
    target: Tensor
    train: Tensor
    test: Tensor
    classes: tuple[str, ...]
    kind: str = "symmetric"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnsupportedError(f"kind is {self.kind!r}, allowed are {', '.join(KINDS)}")

    @cached_property
    def adjacency(self) -> Tensor:
        """The normalised adjacency, sparse."""
        return normalised_adjacency(self.edges, len(self.target), kind=self.kind)

    def _nodes(self, split: str) -> Tensor:
        check_split(split)
        return self.train if split == "train" else self.test

    def count(self, split: str) -> int:
        return len(self._nodes(split))

    def tensors(self, split: str) -> dict[str, Tensor]:
        return {
            "edges": self.edges,
            "features": self.features,
            "target": self.target,
            "nodes": self._nodes(split),
        }

    def make_batch(self, split: str, index: Tensor, augment: Generator | None) -> Batch:
        nodes = self._nodes(split)[index]
        target = torch.full_like(self.target, IGNORED)
        target[nodes] = self.target[nodes]
        return Batch((self.features, self.adjacency), target)


def load_cora(*, root: str | Path | None = None, kind: str = "symmetric") -> Graph:
    """Citations: the first `train_count` nodes are trained on, `test_index` is the test."""
    labels = "`labels`, `test_index`, `train_count`"
    path = _path("cora", "graph_cora.npz", labels, root)
    required = ("edges", "features", "labels", "test_index", "train_count")
    arrays = read_npz(path, required)
    target = torch.from_numpy(arrays["labels"].astype(np.int64))
    test = torch.from_numpy(arrays["test_index"].astype(np.int64))
    train = torch.arange(int(arrays["train_count"]))
    nodes = len(target)
    if len(train) > nodes or bool(((test < 0) | (test >= nodes)).any()):
        raise BrokenDataError(f"{path}: a split names nodes beyond the {nodes} there are")
    return Graph(
        name="cora",
        edges=_edges(path, arrays["edges"], nodes),
        features=_features(path, arrays["features"], nodes),
        target=target,
        train=train,
        test=test,
        classes=tuple(str(label) for label in range(int(target.max()) + 1)),
        kind=kind,
    )


def load_squirrel(
    *, root: str | Path | None = None, kind: str = "symmetric", test_share: float = 0.2
) -> Graph:
    """Wikipedia pages in five equally large classes by their traffic, divided at random."""
    if not 0 < test_share < 1:
        raise UnsupportedError(f"test_share is {test_share}, it must lie between 0 and 1")
    path = _path("squirrel", "graph_squirrel.npz", "`target`, the traffic", root)
    arrays = read_npz(path, ("edges", "features", "target"))
    traffic = torch.from_numpy(arrays["target"].astype(np.float64))
    nodes = len(traffic)
    rank = traffic.argsort(stable=True).argsort()
    order = torch.randperm(nodes, generator=Generator().manual_seed(0))
    held = round(test_share * nodes)
    return Graph(
        name="squirrel",
        edges=_edges(path, arrays["edges"], nodes),
        features=_features(path, arrays["features"], nodes),
        target=rank * _TRAFFIC_CLASSES // nodes,
        train=order[held:],
        test=order[:held],
        classes=tuple(f"traffic quintile {n + 1}" for n in range(_TRAFFIC_CLASSES)),
        kind=kind,
    )


def _path(name: str, file: str, labels: str, root: str | Path | None) -> Path:
    advice = _ADVICE.format(file=file, labels=labels)
    return first_file(name, file, root, subfolders=(name, "graphs"), advice=advice)


def _edges(path: Path, array: Array, nodes: int) -> Tensor:
    return _pairs(path, "edges", array, (nodes, nodes))


def _features(path: Path, array: Array, nodes: int) -> Tensor:
    """Dense, each row divided by its sum as GCN does."""
    columns = int(array.max(initial=0, where=[False, True])) + 1 if array.ndim == 2 else 0
    ones = _pairs(path, "features", array, (nodes, columns))
    dense = torch.zeros(nodes, columns)
    dense[ones[:, 0], ones[:, 1]] = 1.0
    return dense / dense.sum(1, keepdim=True).clamp_min(1.0)


def _pairs(path: Path, name: str, array: Array, limits: tuple[int, int]) -> Tensor:
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise BrokenDataError(
            f"{path}: {name} is {array.dtype} of the shape {array.shape}, expected are "
            "integers (m, 2)"
        )
    pairs = torch.from_numpy(array.astype(np.int64))
    if bool(((pairs < 0) | (pairs >= torch.tensor(limits))).any()):
        raise BrokenDataError(f"{path}: {name} has numbers outside 0 to {limits}")
    return pairs
