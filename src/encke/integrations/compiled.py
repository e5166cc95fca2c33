"""Refusing models that torch.compile runs."""

from __future__ import annotations

from torch import nn

from encke.errors import UnsupportedError
from encke.tape.graph import is_compiled


def refuse_compiled(module: nn.Module, *, asked: bool = False) -> None:
    """Raise if `module` or a part of it is compiled, or if its loop was `asked` to."""
    name = next((n for n, part in module.named_modules() if is_compiled(part)), None)
    if asked or name is not None:
        which = f"its part {name!r}" if name else "the model"
        raise UnsupportedError(
            f"{which} of {type(module).__name__} is run by torch.compile, which this callback "
            "does not follow; train without torch.compile, or in a loop of your own with "
            "encke.attach, which takes compiled models"
        )
