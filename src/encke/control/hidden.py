"""Keeping a tape's hooks out of what is made of a model: copies, pickles, TorchScript.

Hooks are entries in a module's own dictionaries, which `copy.deepcopy`, `pickle` and
`torch.save` take along and `torch.jit.script` tries to compile. While a model has hooks of
this kind, the classes of its modules have an entry in `copyreg.dispatch_table`, which pickle
and copy ask first: what it gives is what they would have got, without those hooks. So the
bytes of a saved model are the same with and without a tape. TorchScript's entry point takes
the hooks off while it looks at a model.
"""

from __future__ import annotations

import contextlib
import copyreg
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import nn

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
#: What else a module notes under a hook's number.
_NOTES = (
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)

_classes: Counter[type] = Counter()
_reducers_before: dict[type, Any] = {}
#: By their identity: a module may compare as it likes.
_models: dict[int, weakref.ref[nn.Module]] = {}


class Hook:
    """A hook that no copy of its module has.

    Whatever goes around `hide`, such as pickling `vars(model)`, gets a function of Python's own
    in its place that does nothing.
    """

    def __deepcopy__(self, _memo: dict[int, Any]) -> Callable[..., None]:
        return _nothing()

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


def _nothing() -> Callable[..., None]:
    return contextlib.nullcontext().__exit__


def hide(model: nn.Module) -> Callable[[], None]:
    """Keep every `Hook` of `model` and its parts to this process; gives what ends that."""
    classes = {type(module) for module in model.modules()}
    for cls in classes:
        if not _classes[cls]:
            _reducers_before[cls] = copyreg.dispatch_table.get(cls)
            copyreg.dispatch_table[cls] = _reduce
        _classes[cls] += 1
    _models[id(model)] = weakref.ref(model)
    _hide_from_scripting()
    end = weakref.finalize(model, _show, id(model), classes)
    end.atexit = False
    return end


def _show(number: int, classes: set[type]) -> None:
    _models.pop(number, None)
    for cls in classes:
        _classes[cls] -= 1
        if _classes[cls]:
            continue
        del _classes[cls]
        before = _reducers_before.pop(cls)
        if copyreg.dispatch_table.get(cls) is not _reduce:
            continue  # somebody else's by now
        if before is None:
            del copyreg.dispatch_table[cls]
        else:
            copyreg.dispatch_table[cls] = before
    if not _classes:
        _show_to_scripting()


# -- copies and pickles ------------------------------------------------------------------


def _reduce(module: nn.Module) -> Any:
    before = _reducers_before.get(type(module))
    reduced = module.__reduce_ex__(2) if before is None else before(module)
    if not isinstance(reduced, tuple):
        return reduced
    make, arguments, *rest = reduced
    arguments = tuple(map(_without_hooks, arguments))
    return make, arguments, *map(_without_hooks, rest[:1]), *rest[1:]


def _without_hooks(state: Any) -> Any:
    """A module's dictionary without hooks of this kind; anything else as it is."""
    if not isinstance(state, dict):
        return state
    numbers = {
        number
        for name in _HOOKS
        for number, hook in dict(state.get(name) or {}).items()
        if isinstance(hook, Hook)
    }
    if not numbers:
        return state
    new = dict(state)
    for name in (*_HOOKS, *_NOTES):
        if isinstance(new.get(name), dict):
            kept = [(n, value) for n, value in new[name].items() if n not in numbers]
            new[name] = OrderedDict(kept)
    return new


# -- TorchScript -------------------------------------------------------------------------


def _hide_from_scripting() -> None:
    recursive: Any = torch.jit._recursive
    original = recursive.create_script_module
    if getattr(original, "hides_hooks", False):
        return

    @wraps(original)
    def create_script_module(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for model in filter(None, [known() for known in _models.values()]):
                for module in model.modules():
                    stack.enter_context(_taken_off(module))
            return original(*args, **kwargs)

    create_script_module.hides_hooks = True  # type: ignore[attr-defined]
    recursive.create_script_module = create_script_module


def _show_to_scripting() -> None:
    installed = torch.jit._recursive.create_script_module
    if getattr(installed, "hides_hooks", False):
        torch.jit._recursive.create_script_module = installed.__wrapped__  # type: ignore[attr-defined]


@contextlib.contextmanager
def _taken_off(module: nn.Module) -> Iterator[None]:
    """Inside, a module has none of these hooks; afterwards all of them, in their order."""
    before = {
        name: list(getattr(module, name).items())
        for name in _HOOKS
        if any(isinstance(hook, Hook) for hook in getattr(module, name).values())
    }
    for name, hooks in before.items():
        for number, hook in hooks:
            if isinstance(hook, Hook):
                del getattr(module, name)[number]
    try:
        yield
    finally:
        for name, hooks in before.items():
            present = getattr(module, name)
            present.clear()
            present.update(hooks)
