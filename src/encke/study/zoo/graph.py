"""GCN (Kipf and Welling, 2016) and GraphSAGE with mean (Hamilton et al., 2017)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor, nn

from encke.errors import UnsupportedError
from encke.study.zoo.adjacency import normalised_adjacency
from encke.study.zoo.batch import Batch
from encke.study.zoo.model import Family
from encke.study.zoo.samples import class_labels, cross_entropy


def multiply_sparse(adjacency: Tensor, x: Tensor) -> Tensor:
    """Adjacency times x as one sparse product."""
    product: Tensor = torch.sparse.mm(adjacency, x)
    return product


def multiply_messages(adjacency: Tensor, x: Tensor) -> Tensor:
    """The same along the edges: gather, weight, add. Keeps a message for every edge."""
    row, column = adjacency.indices()
    messages = x[column] * adjacency.values()[:, None]
    return torch.zeros_like(x).index_add(0, row, messages)


_AGGREGATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sparse": multiply_sparse,
    "index_add": multiply_messages,
}


class GCNLayer(nn.Module):
    """A x W + b."""

    def __init__(self, inward: int, outward: int, aggregate: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inward, outward, bias=False)
        self.bias = nn.Parameter(torch.zeros(outward))
        self.aggregate = _AGGREGATES[aggregate]
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        # The product with W first: it narrows x before the edges multiply it.
        return self.aggregate(adjacency, self.linear(x)) + self.bias


class SageLayer(nn.Module):
    """x W + (A x) V + b."""

    def __init__(self, inward: int, outward: int, aggregate: str) -> None:
        super().__init__()
        self.own = nn.Linear(inward, outward)
        self.neighbours = nn.Linear(inward, outward, bias=False)
        self.aggregate = _AGGREGATES[aggregate]

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        # (A x) V is A (x V): the edges multiply whichever is narrower.
        if self.neighbours.in_features > self.neighbours.out_features:
            theirs = self.aggregate(adjacency, self.neighbours(x))
        else:
            theirs = self.neighbours(self.aggregate(adjacency, x))
        mixed: Tensor = self.own(x) + theirs
        return mixed


class GraphNetwork(nn.Module):
    """Node features and a normalised adjacency to class scores of every node."""

    def __init__(
        self,
        layer: Callable[[int, int, str], nn.Module],
        *,
        features: int,
        hidden: int,
        classes: int,
        depth: int,
        dropout: float,
        aggregate: str,
    ) -> None:
        super().__init__()
        if aggregate not in _AGGREGATES:
            raise UnsupportedError(
                f"aggregate is {aggregate!r}, allowed are {', '.join(_AGGREGATES)}"
            )
        if depth < 1:
            raise UnsupportedError(f"depth is {depth}, it must be at least 1")
        widths = [features, *[hidden] * (depth - 1), classes]
        self.layers = nn.ModuleList(
            layer(inward, outward, aggregate) for inward, outward in pairwise(widths)
        )
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            if index:
                x = self.relu(x)
            x = layer(self.dropout(x), adjacency)
        return x


def gcn(
    *,
    features: int = 1433,
    hidden: int = 64,
    classes: int = 7,
    depth: int = 3,
    dropout: float = 0.5,
    aggregate: str = "sparse",
) -> GraphNetwork:
    """For a "symmetric" adjacency; the defaults fit Cora. `aggregate`: sparse, index_add."""
    return GraphNetwork(
        GCNLayer,
        features=features,
        hidden=hidden,
        classes=classes,
        depth=depth,
        dropout=dropout,
        aggregate=aggregate,
    )


def graphsage(
    *,
    features: int = 1433,
    hidden: int = 64,
    classes: int = 7,
    depth: int = 3,
    dropout: float = 0.5,
    aggregate: str = "index_add",
) -> GraphNetwork:
    """For a "mean" adjacency; the defaults fit Cora. `aggregate`: sparse, index_add."""
    return GraphNetwork(
        SageLayer,
        features=features,
        hidden=hidden,
        classes=classes,
        depth=depth,
        dropout=dropout,
        aggregate=aggregate,
    )


def _sample(
    batch: int, generator: Generator, options: Mapping[str, Any], *, kind: str
) -> Batch:
    """A graph of `batch` · nodes nodes, four random edges a node; 1 % of the features set."""
    nodes = batch * options["nodes"]
    edges = torch.randint(nodes, (4 * nodes, 2), generator=generator)
    features = (torch.rand(nodes, options["features"], generator=generator) < 0.01).float()
    adjacency = normalised_adjacency(edges, nodes, kind=kind)
    return Batch((features, adjacency), class_labels((nodes,), options["classes"], generator))


def _family(name: str, about: str, network: Callable[..., nn.Module], kind: str) -> Family:
    return Family(
        name=name,
        about=about,
        network=network,
        sample=partial(_sample, kind=kind),
        loss=cross_entropy,
        shape={"nodes": 256},
    )


GCN = _family("gcn", "graph convolutional network", gcn, "symmetric")
GRAPHSAGE = _family("graphsage", "GraphSAGE with the neighbours' mean", graphsage, "mean")
