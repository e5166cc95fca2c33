"""Cells that take a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encke.study.cells import Cell
from encke.study.definition import Study, make


def small_study(*policies: str, folder: Path = Path(), **changes: Any) -> Study:
    """An mlp on digits for a few steps, in these ways."""
    given: dict[str, Any] = {
        "models": {"mlp": {"hidden": 96, "depth": 2}},
        "data": ["digits"],
        "policies": list(policies),
        "training": {"steps": 6, "points": 2, "pairs": 1, "train": 512, "test": 64},
    }
    return make(given | changes, name="small", folder=folder)


def small_cell(policy: str, **changes: Any) -> Cell:
    (cell,) = small_study(policy, **changes).cells
    return cell


def without_timings(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what the machine's mood decides."""
    kept = {k: v for k, v in row.items() if k not in ("time", "seconds", "finished")}
    if kept["memory"] is not None:
        kept["memory"] = {k: v for k, v in kept["memory"].items() if k != "peak_bytes"}
    if kept["timeline"] is not None:
        kept["timeline"] = {
            name: [count for _, count in kept["timeline"][name]] for name in ("plain", "kept")
        }
    return kept
