"""Makes the golden files. Run once for a version of the format; they are never rewritten.

python tests/store/golden/make.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

import encke
from encke import store

FOLDER = Path(__file__).parent


def flat(state: Any, path: str = "") -> dict[str, torch.Tensor]:
    """Every tensor of a state, by its path."""
    if isinstance(state, torch.Tensor):
        return {path: state.contiguous().clone()}
    if isinstance(state, dict):
        pairs = state.items()
    else:
        pairs = enumerate(state) if isinstance(state, (list, tuple)) else ()
    return {n: t for key, item in pairs for n, t in flat(item, f"{path}/{key}").items()}


def main() -> None:
    torch.manual_seed(0)
    state = {
        "weight": torch.randn(40, 50),
        "large": torch.randn(66_000),
        "half": torch.randn(30).bfloat16(),
        "integers": torch.arange(20),
        "truth": torch.rand(9) > 0.5,
        "complex": torch.randn(4, dtype=torch.complex64),
        "empty": torch.empty(0, 3),
    }
    state["tied"] = state["weight"]
    v = torch.rand(20, 30) ** 6
    v[2] = 0.0
    optimizer = {
        "state": {0: {"step": torch.tensor(7.0), "exp_avg": 0.3 * v.sqrt(), "exp_avg_sq": v}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}],
    }
    near = encke.PointwiseRelative(0.05)
    bounds = {"weight": encke.Absolute(0.05), "tied": encke.Absolute(0.05),
              "large": encke.RmsRelative(0.2), "half": near}  # fmt: skip
    options: dict[str, Any] = {"bounds": bounds, "moments": store.Moments()}
    extra = {"epoch": 3, "nested": [1, (2.5, None)], "set": {1}, "infinite": float("inf")}
    store.save(FOLDER / "full-1.encke", state, optimizer, extra=extra, **options)
    later = {n: x + 0.01 if x.dtype == torch.float32 else x for n, x in state.items()}
    later["tied"] = later["weight"]
    store.save(FOLDER / "delta-1.encke", later, optimizer, base=FOLDER / "full-1.encke",
               **options)  # fmt: skip
    model = nn.Linear(60, 40)
    store.prune(model, {"weight": 0.1})
    batch = (torch.randn(64, 60), torch.randint(40, (64,)))
    store.save(FOLDER / "pruned-1.encke", model, loss=1e-2, data=[batch])
    for name in ("full-1", "delta-1", "pruned-1"):
        found = flat(store.load(FOLDER / f"{name}.encke"))
        save_file(found, FOLDER / f"{name}.safetensors")


if __name__ == "__main__":
    main()
