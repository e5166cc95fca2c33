"""Reading a stored state back, into a model and an optimizer or as it is."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from encke.errors import CorruptStreamError, EnckeError
from encke.store.entries import Stored
from encke.store.errors import StoreError
from encke.store.moments import fits
from encke.store.reader import StateReader
from encke.store.state import on_device, optimizer_class

log = logging.getLogger("encke")
_Missing = dict[str, str]


def load(
    path: str | Path,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    *,
    only: str | list[str] | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    partial: bool = False,
) -> dict[str, Any]:
    """Read a file of `encke.store.save`; a dictionary with `model`, `optimizer`, `extra`.

    model, optimizer  are filled with what the file holds. Everything is checked and decoded
                      before the first value is changed.
    only              a pattern of names, as "encoder.*", or several: other tensors are not
                      read. A model is then filled where names fit.
    device, dtype     of the tensors in the dictionary
    partial           load what is undamaged, and name the rest: in a warning, and in the
                      dictionary under `missing`, each with its reason

    >>> import encke, tempfile
    >>> one, other = nn.Linear(3, 3), nn.Linear(3, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = encke.store.save(f"{folder}/m.encke", one)
    ...     _ = encke.store.load(f"{folder}/m.encke", other)
    >>> torch.equal(one.weight, other.weight)
    True
    """
    patterns = [only] if isinstance(only, str) else only
    with StateReader(path) as stored:
        chosen = [e for e in stored.entries if patterns is None or _wanted(e, patterns)]
        if patterns is not None and not chosen:
            raise StoreError(f"{path} has no tensor whose name fits {only!r}")
        target = None if model is None else _Target(model, stored, whole=patterns is None)
        if optimizer is not None:
            _check_optimizer(optimizer, stored)
        missing = _damaged(stored, chosen, partial=partial)
        tensors = _tensors(stored, chosen, missing, partial, device, dtype)
        state = stored.state(tensors)
    if not isinstance(state, dict):
        raise CorruptStreamError(f"{path} holds something else than a state by parts")
    if missing:
        log.warning(
            "%s: %d of %d tensors cannot be read: %s",
            path,
            len(missing),
            len(chosen),
            "; ".join(f"{name} ({why})" for name, why in list(missing.items())[:5]),
        )
        state["missing"] = missing
    if target is not None:
        target.fill(state.get("model", {}))
    if optimizer is not None:
        if any(name.startswith("optimizer/") for name in missing):
            raise StoreError(f"{path}: the optimizer's state is damaged; load the model alone")
        optimizer.load_state_dict(state["optimizer"])
    return _without_gaps(state) if patterns is not None or missing else state


def _wanted(entry: Stored, patterns: list[str]) -> bool:
    return any(fits(entry.name, pattern) for pattern in patterns)


def _damaged(stored: StateReader, chosen: list[Stored], *, partial: bool) -> _Missing:
    """Names whose bytes are not those that were written, with the reason."""
    missing: _Missing = {}
    for entry in chosen:
        try:
            stored.check(entry.name)
        except (EnckeError, OSError) as error:
            if not partial:
                raise
            missing[entry.name] = str(error)
    return missing


def _tensors(
    stored: StateReader,
    chosen: list[Stored],
    missing: _Missing,
    partial: bool,
    device: Any,
    dtype: Any,
) -> list[Tensor | None]:
    tensors: list[Tensor | None] = [None] * len(stored.entries)
    kept = {entry.number for entry in chosen}
    for entry in chosen:
        if entry.name in missing:
            continue
        same = entry.facts.get("as") if entry.how == "same" else None
        if same in kept and tensors[same] is not None:
            tensors[entry.number] = tensors[same]
            continue
        try:
            # A number of an optimizer or generator state stays where it was made to be.
            model = entry.name.startswith("model/")
            found = stored.tensor(entry.name)
            tensors[entry.number] = on_device(found, device, dtype if model else None)
        except EnckeError as error:
            if not partial:
                raise
            missing[entry.name] = str(error)
    return tensors


def _without_gaps(state: Any) -> Any:
    """The state without entries whose tensor was not read."""
    if isinstance(state, dict):
        kept = {key: _without_gaps(item) for key, item in state.items() if item is not None}
        return {key: item for key, item in kept.items() if not (item == {} and state[key])}
    return state


class _Target:
    """A model that is to be filled: checked first, changed last."""

    def __init__(self, model: nn.Module, stored: StateReader, *, whole: bool) -> None:
        self._model, self._path = model, stored.path
        found = {
            e.name.removeprefix("model/"): e
            for e in stored.entries
            if e.name.startswith("model/")
        }
        own = {n: v for n, v in model.state_dict().items() if isinstance(v, Tensor)}
        absent = sorted(own.keys() - found.keys())
        unknown = sorted(found.keys() - own.keys())
        wrong = [
            f"{name} is {list(found[name].shape)} in the file and {list(own[name].shape)} here"
            for name in sorted(own.keys() & found.keys())
            if found[name].shape != tuple(own[name].shape)
        ]
        if whole and (absent or unknown or wrong):
            words = []
            if absent:
                words.append(f"the file has no {_listed(absent)}")
            if unknown:
                words.append(f"the model has no {_listed(unknown)}")
            words += wrong[:3]
            raise StoreError(
                f"{self._path} does not fit this {type(model).__name__}: {'; '.join(words)}; "
                "nothing was loaded. load(path, only=...) gives tensors by name"
            )
        if not whole and wrong:
            raise StoreError(f"{self._path} does not fit: {wrong[0]}; nothing was loaded")

    def fill(self, state: Mapping[str, Any]) -> None:
        given = {name: value for name, value in state.items() if value is not None}
        self._model.load_state_dict(given, strict=False)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_optimizer(optimizer: Optimizer, stored: StateReader) -> None:
    """Raise unless the stored state is one of this optimizer over these parameters."""
    tree = stored.index.get("tree")
    if not isinstance(tree, dict) or "optimizer" not in tree:
        raise StoreError(f"{stored.path} was saved without an optimizer; load the model alone")
    written = stored.report.get("optimizer", {}).get("class")
    own = optimizer_class(optimizer)
    if written not in (None, "state", own):
        raise StoreError(f"{stored.path} holds the state of {written}, this is {own}")
    groups = (
        tree["optimizer"].get("param_groups") if isinstance(tree["optimizer"], dict) else None
    )
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    try:
        found = [len(group["params"]) for group in groups or []]
    except (TypeError, KeyError):
        found = []
    if found != sizes:
        raise StoreError(
            f"{stored.path} holds an optimizer with groups of {found} parameters, this one has "
            f"{sizes}"
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for entry in stored.entries:
        pieces = entry.name.split("/")
        if pieces[:2] != ["optimizer", "state"] or len(pieces) != 4 or not pieces[2].isdigit():
            continue
        number = int(pieces[2])
        if number >= len(parameters) or (
            entry.values > 1
            and entry.shape != tuple(parameters[number].shape)
            and pieces[3] in ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg")
        ):
            raise StoreError(
                f"{stored.path} has {entry.name} of shape {list(entry.shape)}, which fits no "
                "parameter of this optimizer"
            )
