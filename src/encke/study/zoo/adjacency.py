"""Edges of a graph as the sparse matrix that a graph network multiplies with."""

from __future__ import annotations

import torch
from torch import Tensor

from encke.errors import UnsupportedError

KINDS = ("symmetric", "mean")


def normalised_adjacency(edges: Tensor, nodes: int, *, kind: str) -> Tensor:
    """A coalesced sparse (nodes, nodes) matrix of the undirected graph with these edges.

    `edges` is (m, 2); directions, repetitions and loops do not matter. "symmetric" is the
    GCN's D^-1/2 (A + I) D^-1/2, "mean" GraphSAGE's D^-1 A, whose rows sum to one, or to
    zero where a node has no neighbour.

    >>> normalised_adjacency(torch.tensor([[0, 1], [1, 2]]), 3, kind="mean").to_dense()
    tensor([[0.0000, 1.0000, 0.0000],
            [0.5000, 0.0000, 0.5000],
            [0.0000, 1.0000, 0.0000]])
    """
    if kind not in KINDS:
        raise UnsupportedError(f"kind is {kind!r}, allowed are {', '.join(KINDS)}")
    first, second = edges.long().unbind(1)
    between = first != second
    both = torch.cat([first * nodes + second, second * nodes + first])
    kept = both[torch.cat([between, between])]
    if kind == "symmetric":
        kept = torch.cat([kept, torch.arange(nodes) * (nodes + 1)])
    cells: Tensor = torch.unique(kept)
    row, column = cells // nodes, cells % nodes
    degree = torch.bincount(row, minlength=nodes).float()
    weight = (degree[row] * degree[column]).rsqrt() if kind == "symmetric" else 1 / degree[row]
    matrix = torch.sparse_coo_tensor(
        torch.stack([row, column]), weight, (nodes, nodes), check_invariants=True
    )
    return matrix.coalesce()
