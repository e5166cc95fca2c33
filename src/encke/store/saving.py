"""Writing a model, an optimizer and what else belongs to a training into one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from encke.atomic import check_output
from encke.bound import Bound
from encke.errors import BoundError
from encke.store.delta import Base
from encke.store.errors import StoreError
from encke.store.moments import Moments, given_rules, optimizer_rules
from encke.store.objective import Objective
from encke.store.planning import Plan, plan
from encke.store.rules import Rule
from encke.store.state import State, gathered, optimizer_class
from encke.store.summary import Summary, plain_bytes
from encke.store.tree import Flattened
from encke.store.writer import check_tensors, write_state


def save(
    path: str | Path,
    model: nn.Module | Mapping[str, Any] | None = None,
    optimizer: Optimizer | Mapping[str, Any] | None = None,
    *,
    loss: float | None = None,
    data: Iterable[Any] | None = None,
    objective: Objective | None = None,
    accuracy: float | None = None,
    evaluate: Callable[[Any], float] | None = None,
    bounds: Bound | Mapping[str, Bound] | None = None,
    moments: Moments | None = None,
    extra: Mapping[str, Any] | None = None,
    base: str | Path | None = None,
    keyframe: int = 10,
    feedback: bool = True,
    examples: int | None = None,
    level: float | None = None,
) -> Summary:
    """Write a state to `path`, replacing it whole or not at all.

    Without loss=, accuracy= and bounds= every bit comes back.

    loss       how much the loss may rise, as a share of it. With `data`, batches of
               `objective` (default: model(**batch).loss, or cross-entropy of a pair), the
               rise is measured and held. Without, the optimizer's second moments stand in
               for the curvature (`examples`, `level`: see `encke.store.plan`).
    accuracy   instead of loss: by how much `evaluate(model)`, larger being better, may fall
    bounds     instead of both: a bound for all weights, or bounds by pattern of names
    moments    how far an optimizer's means may stray; exact if neither this nor a budget is
               given
    extra      what else to keep: numbers, schedulers' states, random states, …
    base       a file saved before: only what changed since is written, if the model is the
               same. A full file is written where the chain would have more than `keyframe`
               files, and where there is no file at `base`.
    feedback   round with error feedback where a layer's inputs are known; weights then stray
               up to twice their bound

    >>> import tempfile, encke
    >>> model = nn.Linear(64, 64)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = encke.store.save(f"{folder}/m.encke", model, bounds=encke.RmsRelative(0.1))
    >>> done.ratio > 5
    True
    """
    target = Path(path)
    _check_request(model, loss, data, accuracy, evaluate, bounds, keyframe)
    check_output(target, force=True)
    state = gathered(model, optimizer, extra)
    flat = Flattened(state)
    check_tensors(flat)
    origin = _opened(base, keyframe, target)
    try:
        rules: dict[str, Rule] = {}
        report: dict[str, Any] = {}
        made: Plan | None = None
        if loss is not None:
            made = plan(
                model,  # type: ignore[arg-type]
                optimizer,  # type: ignore[arg-type]
                loss=loss,
                data=data,
                objective=objective,
                feedback=feedback,
                examples=examples,
                level=level,
                base=origin,
            )
            rules |= made.rules
            report["budget"] = {"relative": loss, **made.report()}
        if accuracy is not None:
            from encke.store.accuracy import fitted

            found, told = fitted(model, evaluate, accuracy, data, objective, feedback=feedback)
            rules |= found
            report["accuracy"] = told
        lossy = made is not None or accuracy is not None
        exact = _add_moments(rules, report, state, optimizer, moments, lossy=lossy)
        if bounds is not None:
            patterns = {"model/*": bounds} if isinstance(bounds, Bound) else bounds
            given = _floats(flat)
            rules |= given_rules(given, patterns, optimizer=optimizer_class(optimizer))
        index = write_state(target, state, rules, report=report, base=origin)
    finally:
        if origin is not None:
            origin.close()
    return Summary(
        path=target,
        nbytes=target.stat().st_size,
        plain_nbytes=plain_bytes(index["tensors"]),
        report=report,
        exact=exact,
        links=1 if origin is None else origin.links + 1,
    )


def _check_request(
    model: object,
    loss: float | None,
    data: object,
    accuracy: float | None,
    evaluate: object,
    bounds: object,
    keyframe: int,
) -> None:
    if sum(value is not None for value in (loss, accuracy, bounds)) > 1:
        raise BoundError("give one of loss=, accuracy= and bounds=")
    if (accuracy is None) != (evaluate is None):
        raise BoundError("accuracy= and evaluate= go together")
    if data is not None and loss is None and accuracy is None:
        raise BoundError("data= is for loss= or accuracy=, and neither is given")
    if (loss is not None or accuracy is not None) and not isinstance(model, nn.Module):
        raise StoreError("a budget needs the model itself, not its state; or give bounds=")
    if keyframe < 1:
        raise BoundError(f"keyframe is {keyframe}, allowed is 1 or more")


def _add_moments(
    rules: dict[str, Rule],
    report: dict[str, Any],
    state: State,
    optimizer: object,
    moments: Moments | None,
    *,
    lossy: bool,
) -> list[str]:
    """Rules for the optimizer; the names of states that are not recognised."""
    if "optimizer" not in state:
        return []
    kind = optimizer_class(optimizer)
    report["optimizer"] = {"class": kind}
    if moments is None and not lossy:
        return []
    found, exact = optimizer_rules(
        kind, state["optimizer"].get("state", {}), moments or Moments()
    )
    rules |= found
    report["optimizer"]["exact"] = exact
    return exact


def _floats(flat: Flattened) -> list[str]:
    return [n for n, x in zip(flat.names, flat.tensors, strict=True) if x.is_floating_point()]


def _opened(base: str | Path | None, keyframe: int, target: Path) -> Base | None:
    if base is None:
        return None
    path = Path(base)
    if not path.exists():
        return None
    if target.exists() and path.samefile(target):
        raise StoreError(f"base and path are the same file, {path}, which would be replaced")
    found = Base(path)
    if found.links >= keyframe:
        found.close()
        return None
    return found
