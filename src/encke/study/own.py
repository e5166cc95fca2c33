"""A user's own network and data: functions in a file, named as `file.py:function`.

`build()` returns the network. `loaders()` returns two collections of batches, to train and to
test on; a batch is an input, or a tuple of inputs, and a target. Either may take `seed` and
options that the study gives. Beside them, the files may define `loss(output, target)`,
`metric(output, target)` and `metric_better = "lower"`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from encke.study.cells import Cell, Part
from encke.study.errors import StudyError, unknown
from encke.study.metric import Metric
from encke.study.settings import Settings
from encke.study.zoo import Batch


@dataclass(frozen=True, kw_only=True)
class Own:
    """A function of a user's and the module it stands in."""

    text: str
    module: ModuleType
    call: Callable[..., Any]


def is_own(name: str) -> bool:
    """Whether a name of a model or data set means a user's function.

    >>> is_own("my_model.py:build"), is_own("resnet18")
    (True, False)
    """
    return ":" in name


def load_own(text: str, *, folder: str | Path) -> Own:
    """The function that `file.py:function` or `package.module:function` names."""
    place, _, name = text.rpartition(":")
    module = _module_of_file(Path(folder, place)) if place.endswith(".py") else _import(place)
    call = getattr(module, name, None)
    if not callable(call):
        there = [n for n, f in vars(module).items() if inspect.isfunction(f)]
        raise unknown(f"the function of {place}", name, there)
    return Own(text=text, module=module, call=call)


def own_network(own: Own, cell: Cell) -> nn.Module:
    """What the user's function builds, from the cell's seed."""
    torch.manual_seed(cell.seed)
    network = _called(own, cell.model, cell.seed)
    if not isinstance(network, nn.Module):
        raise StudyError(
            f"{own.text} returned {type(network).__name__}, it must return a torch.nn.Module"
        )
    return network


def own_batches(own: Own, cell: Cell, settings: Settings) -> tuple[Batches, Batches]:
    """Batches to train and to test on."""
    found = _called(own, cell.data, cell.seed)
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise StudyError(
            f"{own.text} returned {type(found).__name__}, it must return two collections of "
            "batches: (train, test)"
        )
    for batches in found:
        if isinstance(batches, Iterator):
            raise StudyError(
                f"{own.text} returned an iterator, which ends after one pass; return a list, a "
                "DataLoader, or another collection that can be passed over again"
            )
    train, test = (Batches(one, own.text) for one in found)
    test.limit = settings.test
    return train, test


def own_loss(own: Own) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The function `loss` of the user's file, if there is one."""
    return getattr(own.module, "loss", None)


def own_metric(own: Own) -> Metric | None:
    """The function `metric` of the user's file, if there is one."""
    measure = getattr(own.module, "metric", None)
    if measure is None:
        return None
    better = getattr(own.module, "metric_better", "higher")
    if better not in ("higher", "lower"):
        raise unknown(f"metric_better of {own.text}", str(better), ["higher", "lower"])
    name = getattr(own.module, "metric_name", "metric")
    unit = getattr(own.module, "metric_unit", "")
    return Metric(
        name=name,
        unit=unit,
        better="lower" if better == "lower" else "higher",
        measure=lambda output, target: float(measure(output, target)),
    )


class Batches:
    """A user's batches as the study has them; `limit` ends a pass after so many targets."""

    def __init__(self, batches: Iterable[Any], text: str) -> None:
        self._batches, self._text = batches, text
        self.limit: int | None = None

    def __len__(self) -> int:
        try:
            return len(self._batches)  # type: ignore[arg-type]
        except TypeError:
            return sum(1 for _ in self._batches)

    def of_epoch(self, _epoch: int) -> Iterable[Batch]:
        """A pass; the order of one is the user's own affair."""
        return self.all()

    def all(self) -> Iterable[Batch]:
        """A pass, checked."""
        seen = 0
        for one in self._batches:
            if not isinstance(one, tuple | list) or len(one) != 2:
                raise StudyError(
                    f"{self._text}: a batch is {type(one).__name__}, it must be a pair of "
                    "input (a tensor or a tuple of tensors) and target"
                )
            inputs, target = one
            yield Batch((inputs,) if isinstance(inputs, Tensor) else tuple(inputs), target)
            seen += len(target)
            if self.limit is not None and seen >= self.limit:
                return


def _called(own: Own, part: Part, seed: int) -> Any:
    parameters = inspect.signature(own.call).parameters
    given = dict(part.options) | ({"seed": seed} if "seed" in parameters else {})
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in given:
        if name not in parameters and not takes_any:
            raise unknown(f"an option of {own.text}", name, parameters)
    return own.call(**given)


def _import(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise StudyError(f"module {place!r} cannot be imported: {error}") from error


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise StudyError(f"there is no file {path}; functions are named as file.py:function")
    name = f"encke_own_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # As with `python file.py`: what lies beside it can be imported.
    sys.path[:0] = [str(path.resolve().parent)] * (str(path.resolve().parent) not in sys.path)
    spec.loader.exec_module(module)
    return module
