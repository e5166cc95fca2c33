"""Seeing every op as it runs, and which module runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils.hooks import RemovableHandle

from encke.head.lazy import intercept
from encke.tape.cost.pace import Pace
from encke.tape.recompute.elementwise import note_number


class OpObserver(TorchFunctionMode):
    """While entered, calls `seen` with the tensors that each torch function returned.

    before  called as each torch function starts
    head    whether logits are computed only if somebody looks at them: see `encke.head`
    """

    def __init__(
        self,
        seen: Callable[[list[Tensor]], None],
        before: Callable[[], None] = lambda: None,
        pace: Pace | None = None,
        *,
        head: bool = False,
    ) -> None:
        super().__init__()
        self._head = head
        self._seen, self._before = seen, before
        self._pace = Pace() if pace is None else pace

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)  # what is compiled is seen as the one op it becomes
        self._before()
        self._pace.functions += 1
        result = intercept(func, args, kwargs) if self._head else NotImplemented
        if result is NotImplemented:
            result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            if result.grad_fn is not None and torch.is_grad_enabled():
                note_number(func, args, result)
                self._seen([result])
        elif isinstance(result, tuple | list):
            tensors = [t for t in tensors_in(result) if t.grad_fn is not None]
            if tensors and torch.is_grad_enabled():
                self._seen(tensors)
        return result

    def ignore(self) -> None:
        """Stay entered, and call nobody any more."""
        self._seen, self._before = lambda _: None, lambda: None

    def abandon(self) -> None:
        """Stop seeing, also where another mode was entered since and this one must stay."""
        self.ignore()
        if _get_current_function_mode() is self:  # type: ignore[no-untyped-call]
            self.__exit__(None, None, None)


def tensors_in(result: Any) -> Iterator[Tensor]:
    """The tensors in a function's result, however nested."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, tuple | list):
        for one in result:
            yield from tensors_in(one)
    elif isinstance(result, dict):
        for one in result.values():
            yield from tensors_in(one)


class RunningModule:
    """The name of the module whose forward is running."""

    def __init__(self, model: nn.Module | None) -> None:
        self._names: dict[int, str] = {}
        self._stack: list[str] = []
        self._hooks: list[tuple[Any, Any]] = []
        self._model = model
        if model is not None:
            self.learn(model)

    def learn(self, model: nn.Module) -> None:
        """Know the modules of `model` by their names in it."""
        self._names = {id(m): name for name, m in model.named_modules(remove_duplicate=False)}

    def _name(self, module: nn.Module) -> str:
        name = self._names.get(id(module))
        if name is None:
            name = ".".join(filter(None, (self.now, type(module).__name__)))
        return name

    @property
    def now(self) -> str:
        return self._stack[-1] if self._stack else ""

    def start(self) -> None:
        if self._hooks:
            for handle, hook in self._hooks:
                _put_back(handle, hook)
            return
        enter, leave = self._enter, self._leave
        self._hooks = [
            (register_module_forward_pre_hook(enter), enter),
            (register_module_forward_hook(leave, always_call=True), leave),
        ]

    def enter(self, module: nn.Module) -> None:
        """The call of `module` runs already: its hooks were listed before `start`."""
        self._stack.append(self._name(module))

    def _enter(self, module: nn.Module, _args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._stack.append(self._name(module))

    def _leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        if self._stack and not torch.compiler.is_compiling():
            self._stack.pop()

    def stop(self) -> None:
        for handle, _ in self._hooks:
            handle.remove()
        self._stack.clear()


def _put_back(handle: RemovableHandle, hook: Any) -> None:
    """Register a hook that was removed under the number that it had.

    torch.compile looks at these numbers: a part of the model that is compiled would be
    compiled again in every step.
    """
    hooks = handle.hooks_dict_ref()
    if hooks is not None:
        hooks[handle.id] = hook
    for reference in handle.extra_dict_ref:
        extra = reference()
        if extra is not None:
            extra[handle.id] = True
