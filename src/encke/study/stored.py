"""Files of the store while a training runs: each what changed since the one before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from encke import store
from encke.study.training import Training

_BATCHES = 4


def save_stored(training: Training, directory: Path, *, loss: float | None) -> Path:
    """Write `saved/step-N.encke`; the training goes on as if nothing had been written."""
    folder = directory / "saved"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{training.step}.encke"
    earlier = [p for p in folder.glob("step-*.encke") if _step(p) < training.step]
    options: dict[str, Any] = {}
    if loss is not None:
        options = {"loss": loss, "data": _batches(training), "objective": _objective(training)}
    with training.fitted.plain():
        store.save(
            path,
            training.network,
            training.optimizer,
            extra={"step": training.step, "schedule": training.schedule.state_dict()},
            base=max(earlier, key=_step, default=None),
            **options,
        )
    return path


def _step(path: Path) -> int:
    number = path.stem.removeprefix("step-")
    return int(number) if number.isdigit() else -1


def _batches(training: Training) -> list[Any]:
    """The first batches of the training data, always the same."""
    chance = torch.get_rng_state()
    found = []
    for batch in training.subject.train(0):
        found.append(batch)
        if len(found) == _BATCHES:
            break
    torch.set_rng_state(chance)
    return found


def _objective(training: Training) -> Any:
    def objective(network: Any, batch: Any) -> Tensor:
        return training.subject.loss(network(*batch.inputs), batch.target)

    return objective
