"""What may be given to `attach` and to the policies, checked before anything is changed.

Each function returns what it was given if that is allowed. The messages say what was given,
what is allowed, and what was probably meant.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from encke.bound import Bound
from encke.errors import BoundError, UnsupportedError, did_you_mean
from encke.tape import Policy

Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None


def number(value: Any, *, of: str, low: float, high: float, hint: str = "") -> float:
    """A number from `low` to `high`; `low` itself only where it is not zero.

    >>> number(0.01, of="tolerance", low=0, high=1)
    0.01
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (low == 0 and value == 0):
        least = f"above {low:g}" if low == 0 else f"{low:g}"
        given = f"{value!r}" if is_number else f"{value!r} ({type(value).__name__})"
        raise UnsupportedError(
            f"{of} is {given}, allowed is a number, {least} to {high:g}{hint and f'; {hint}'}"
        )
    return float(value)


def count(value: Any, *, of: str, low: int = 1) -> int:
    """A whole number of at least `low`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < low:
        raise UnsupportedError(
            f"{of} is {value!r}, allowed is a whole number of at least {low}"
        )
    return int(value)


def tolerance(value: Any) -> float:
    return number(
        value,
        of="tolerance",
        low=0,
        high=1,
        hint="0.01, the default, adds one per cent to the variance of the gradients",
    )


def slowdown(value: Any) -> float | None:
    """Time that a tape may take, as a share of a step without it; None for any."""
    if value is None:
        return None
    found = number(
        value,
        of="slowdown",
        low=0,
        high=math.inf,
        hint="0.3, the default, allows steps of 1.3 times the time",
    )
    return None if math.isinf(found) else found


def bound(value: Any, *, of: str = "bound") -> Bound:
    """One of the six bounds, never a bare number."""
    if isinstance(value, Bound) and type(value) is not Bound:
        return value
    example = f"{float(value)!r}" if _is_number(value) else "0.01"
    raise BoundError(
        f"{of} is {value!r}, which does not say what it is relative to; write "
        f"RangeRelative({example}), Absolute({example}) or another of encke's bounds"
    )


def codec(name: Any) -> str:
    """The name of a codec, or "auto"."""
    from encke.codec import registry

    if name != "auto":
        registry.by_name(name if isinstance(name, str) else repr(name))
    return str(name)


def choice(value: Any, *, of: str, allowed: Iterable[str]) -> str:
    """One of a few words."""
    allowed = list(allowed)
    if value not in allowed:
        raise UnsupportedError(
            f"{of} is {value!r}, allowed are {', '.join(allowed)}{did_you_mean(value, allowed)}"
        )
    return str(value)


def module(model: Any, *, of: str) -> nn.Module:
    """A module that hooks can be put on."""
    if not isinstance(model, nn.Module):
        hint = " (an object of the class, not the class itself)" if _is_module(model) else ""
        raise UnsupportedError(
            f"{of} takes a torch.nn.Module{hint}, this is {_kind(model)}; for a part of a "
            "computation without a module, use `with encke.activations(bound):`"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError(
            f"{of} was given a {type(model).__name__}: TorchScript runs a model outside of "
            "Python and takes no hooks; train the module that was scripted"
        )
    return model


def optimizers(given: Any, model: nn.Module | None) -> list[torch.optim.Optimizer]:
    """The optimizers as a list; each holds parameters of `model`, if that is given."""
    if given is None:
        return []
    if isinstance(given, torch.optim.Optimizer):
        found = [given]
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        found = list(given)
    else:
        found = [given]
    for one in found:
        if not isinstance(one, torch.optim.Optimizer):
            raise UnsupportedError(
                f"optimizer is {one!r:.80} ({type(one).__name__}), allowed are a "
                f"torch.optim.Optimizer, several of them, or None{_meant_by(one)}"
            )
        if model is not None and not trains(one, model):
            raise UnsupportedError(
                f"the optimizer ({type(one).__name__}) holds none of the parameters of "
                f"{type(model).__name__}: it trains another model; give the one that "
                "trains this model, or leave the optimizer out"
            )
    return found


def trains(optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
    """Whether an optimizer holds a parameter of `model`."""
    own = {id(p) for p in model.parameters()}
    return any(id(p) in own for group in optimizer.param_groups for p in group["params"])


def policy(given: Any) -> Policy:
    """An object that decides about bounds."""
    needed = ("begin", "treat", "observe", "state_dict", "load_state_dict")
    if not isinstance(given, type) and all(callable(getattr(given, n, None)) for n in needed):
        return given  # type: ignore[no-any-return]
    raise UnsupportedError(
        f"policy is {given!r:.80} ({_kind(given)}), allowed is an object with the methods "
        f"{', '.join(needed)}, such as encke.Fixed(encke.RangeRelative(0.02))"
        f"{_policy_meant_by(given)}"
    )


def known(options: Mapping[str, Any], *takers: Callable[..., Any], of: str) -> None:
    """Raise if one of `options` is not a keyword of any of `takers`."""
    allowed = [
        name
        for taker in takers
        for name, parameter in inspect.signature(taker).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name != "self"
    ]
    for name in options:
        if name not in allowed:
            raise UnsupportedError(
                f"{of} has no option {name!r}, allowed are {', '.join(dict.fromkeys(allowed))}"
                f"{did_you_mean(name, allowed)}"
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_module(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _meant_by(optimizer: Any) -> str:
    if _is_number(optimizer):
        return f"; did you mean tolerance={optimizer!r}?"
    if isinstance(optimizer, torch.Tensor):
        return "; did you mean an optimizer made of these parameters?"
    if isinstance(optimizer, Bound):
        return f"; did you mean policy=encke.Fixed({optimizer!r})?"
    if callable(getattr(optimizer, "treat", None)):
        return "; did you mean policy=…?"
    return ""


def _policy_meant_by(given: Any) -> str:
    if isinstance(given, Bound):
        return f"; did you mean policy=encke.Fixed({given!r})?"
    if _is_number(given):
        return f"; did you mean tolerance={given!r}?"
    if isinstance(given, str):
        likely = did_you_mean(given, _NAMED).removeprefix("; did you mean ").removesuffix("?")
        if likely:
            return f"; did you mean {_NAMED[likely]}?"
    return ""


#: What the names that `encke run --policy` takes are in Python.
_NAMED = {
    "adaptive": "to leave policy out, which gives the controller",
    "lossless": "policy=encke.Fixed(encke.Lossless())",
    "fixed": "policy=encke.Fixed(encke.RangeRelative(0.02))",
    "comet": "policy=encke.Comet(model=model, optimizers=[optimizer])",
    "bits": "policy=encke.GroupBits(2)",
    "budget": "budget='6GiB'",
}
