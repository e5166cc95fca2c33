"""What a file of the store is made of: a model's state, an optimizer's, and what else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from encke.store.errors import StoreError

State = dict[str, Any]


def gathered(
    model: nn.Module | Mapping[str, Any] | None,
    optimizer: Optimizer | Mapping[str, Any] | None,
    extra: Mapping[str, Any] | None,
) -> State:
    """The state of all that was given, by part."""
    state: State = {}
    if model is not None:
        found = model.state_dict() if isinstance(model, nn.Module) else model
        if not isinstance(found, Mapping):
            raise StoreError(f"model is a {type(model).__name__}; give a module or its state")
        state["model"] = dict(found)
    if optimizer is not None:
        if isinstance(optimizer, Optimizer) or hasattr(optimizer, "state_dict"):
            state["optimizer"] = optimizer.state_dict()
        elif isinstance(optimizer, Mapping):
            state["optimizer"] = dict(optimizer)
        else:
            raise StoreError(
                f"optimizer is a {type(optimizer).__name__}; give an optimizer or its state"
            )
    if extra is not None:
        state["extra"] = dict(extra)
    if not state:
        raise StoreError("nothing to save: give a model, an optimizer or extra=")
    return state


def optimizer_class(optimizer: object) -> str:
    """The class of an optimizer, behind wrappers; of a state, what it looks like."""
    if isinstance(optimizer, Mapping):
        return "state"
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps optimizers
    for cls in type(inner).__mro__:
        if cls.__module__.startswith("torch.optim") and cls is not Optimizer:
            return cls.__name__
    return type(inner).__name__


def names_of_parameter(model: nn.Module) -> dict[str, list[str]]:
    """Each parameter's first name, and all names that its state has for it.

    >>> both = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    >>> both["b"].weight = both["a"].weight
    >>> names_of_parameter(both)["a.weight"]
    ['a.weight', 'b.weight']
    """
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        names.setdefault(known, []).append(name)
    return names


def on_device(value: Tensor, device: Any, dtype: Any) -> Tensor:
    """A decoded tensor where and as it is wanted; only floating-point dtypes change."""
    return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
