"""Checkpoints of Lightning's `Trainer` as files of the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from encke.bound import Bound
from encke.integrations.absent import absent
from encke.store import Moments, StateReader
from encke.store.bare import bounds_from_moments
from encke.store.errors import StoreError
from encke.store.moments import debiased, optimizer_rules
from encke.store.rules import Rule, Within
from encke.store.writer import write_state

try:
    from lightning.pytorch.plugins.io import CheckpointIO
except ModuleNotFoundError as error:
    if error.name not in ("lightning", "lightning.pytorch"):
        raise
    try:
        from pytorch_lightning.plugins.io import CheckpointIO  # type: ignore[assignment]
    except ModuleNotFoundError as other:
        if other.name != "pytorch_lightning":
            raise
        raise absent(__name__, package="lightning", extra="lightning") from None


class EnckeCheckpointIO(CheckpointIO):
    """`Trainer(plugins=[EnckeCheckpointIO(loss=1e-3)])` writes and reads files of the store.

    loss      relative rise of the loss that the weights' errors may cost, by the second
              moments of the first optimizer; None keeps every bit
    examples  labels behind one gradient, and `level` the loss as it is (see `store.plan`)
    moments   how far optimizers' means may stray; exact without loss

    A checkpoint holds what Lightning puts into it, as long as that needs no pickle.
    """

    def __init__(
        self,
        *,
        loss: float | None = None,
        examples: int | None = None,
        level: float | None = None,
        moments: Moments | None = None,
    ) -> None:
        self._loss, self._examples, self._level = loss, examples, level
        self._moments = moments if moments is not None or loss is None else Moments()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        state = _plain(checkpoint)
        rules: dict[str, Rule] = {}
        optimizers = state.get("optimizer_states") or []
        if self._moments is not None:
            for number, one in enumerate(optimizers):
                prefix = f"optimizer_states/{number}"
                rules |= optimizer_rules("state", one["state"], self._moments, prefix=prefix)[0]
        if self._loss is not None:
            rules |= self._weights(state, optimizers)
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_state(target, state, rules, report={"relative": self._loss})

    def _weights(self, state: dict[str, Any], optimizers: list[Any]) -> dict[str, Rule]:
        moments = [
            (tuple(states["exp_avg_sq"].shape), debiased(states))
            for one in optimizers
            for states in one["state"].values()
            if isinstance(states, Mapping) and isinstance(states.get("exp_avg_sq"), Tensor)
        ]
        if not moments:
            if optimizers:
                raise StoreError("loss= needs an optimizer with second moments, as AdamW")
            return {}  # weights alone were asked for, before any step
        weights = {n: x for n, x in state["state_dict"].items() if isinstance(x, Tensor)}
        bounds: dict[str, Bound] = bounds_from_moments(
            weights,
            moments,
            loss=self._loss or 0.0,
            examples=self._examples,
            level=self._level,
            where="the checkpoint",
        )
        return {f"state_dict/{name}": Within(bound=bound) for name, bound in bounds.items()}

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        with StateReader(Path(path)) as stored:
            for name in stored.names:
                stored.check(name)
            state = stored.state([stored.tensor(name) for name in stored.names])
        if not isinstance(state, dict):
            raise StoreError(f"{path} holds no checkpoint of Lightning")
        return state

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """Dictionaries of other classes, as Lightning has some, as plain ones."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) is list:
        return [_plain(item) for item in value]
    return value
