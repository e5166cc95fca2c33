"""What the tensors of a file look like before they are compressed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from encke.cli.output import print_json, print_table

if TYPE_CHECKING:
    from torch import Tensor


def describe(arguments: argparse.Namespace, *, facts: Callable[..., dict[str, Any]]) -> int:
    """Print one row for each tensor, and propose fill values."""
    from encke.cli.fill_flags import propose
    from encke.cli.tensor_files import open_tensors

    source = open_tensors(arguments.input, dtype=None, shape=None)
    report = []
    for name in source.names:
        x, own = source.load(name), source.fill(name)
        report.append(facts(name, x, own) | {"proposed_fill": list(propose(name, x, own))})
    if arguments.json:
        print_json(
            {
                "file": str(arguments.input),
                "attributes": source.attributes,
                "tensors": report,
            }
        )
        return 0
    columns = ["tensor", "shape", "dtype", "low", "high", "holes", "fill", "proposed"]
    print_table(
        columns,
        [
            [
                row["name"],
                "×".join(map(str, row["shape"])) or "scalar",
                row["dtype"],
                "–" if row["low"] is None else f"{row['low']:g}",
                "–" if row["high"] is None else f"{row['high']:g}",
                f"{row['holes']:.1%}",
                " ".join(f"{n:g}" for n in row["fill"]) or "–",
                " ".join(f"{n:g}" for n in row["proposed_fill"]) or "–",
            ]
            for row in report
        ],
    )
    return 0


def tensor_facts(name: str, x: Tensor, fill: tuple[float, ...]) -> dict[str, Any]:
    """Range of the values, and the share of positions that have none."""
    import torch

    from encke.ops.reference.holes import mark_values

    values, holes = x.reshape(-1), 0.0
    if x.dtype.is_floating_point:
        valid, many = mark_values(x, fill)
        values, holes = x[valid], 1 - many / max(1, x.numel())
    low, high = (None, None)
    if values.numel() and x.dtype != torch.bool:
        low, high = (v.item() for v in torch.aminmax(values))
    return {
        "name": name,
        "shape": list(x.shape),
        "dtype": str(x.dtype).removeprefix("torch."),
        "low": low,
        "high": high,
        "holes": holes,
        "fill": list(fill),
    }
