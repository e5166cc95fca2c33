"""Names of parameters, for what must be found again in another process."""

from __future__ import annotations

import weakref

from torch import Tensor, nn

from encke.errors import UnsupportedError


class ParameterNames:
    """Names by parameter: the model's own where it is known, else by order of appearance.

    DDP's first backward of a process shows the parameters in an order that the model and the
    bucket size fix, so names by appearance are the same in the next process, too.
    """

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def learn(self, model: nn.Module) -> None:
        """Take the names from `model` (of a DDP wrapper, those of what it wraps)."""
        inner = (
            model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        )
        for name, parameter in inner.named_parameters():
            known = self._known(parameter)
            if known is not None and known != name:
                raise UnsupportedError(
                    f"parameter {name!r} has been exchanged as {known!r}; name the model's "
                    "parameters before the first backward"
                )
            self._names[id(parameter)] = (weakref.ref(parameter), name)

    def of(self, parameter: Tensor) -> str:
        known = self._known(parameter)
        if known is None:
            known = f"parameter.{len(self._names)}"
            self._names[id(parameter)] = (weakref.ref(parameter), known)
        return known

    def _known(self, parameter: Tensor) -> str | None:
        entry = self._names.get(id(parameter))
        return entry[1] if entry is not None and entry[0]() is parameter else None
