"""Whether torch.compile stands between a module and its forward."""

from __future__ import annotations

import sys

from torch import nn

from encke.errors import UnsupportedError


def is_compiled(module: nn.Module) -> bool:
    """Whether calling `module` runs a graph of torch.compile instead of its forward.

    >>> is_compiled(nn.ReLU())
    False
    """
    if module._compiled_call_impl is not None:
        return True
    # Importing it takes seconds, and nothing is compiled where nobody has.
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and isinstance(module, frames.OptimizedModule)


def refuse_compiled(module: nn.Module, *, asked: bool = False) -> None:
    """Raise if `module` or a part of it is compiled, or if its loop was `asked` to."""
    name = next((n for n, part in module.named_modules() if is_compiled(part)), None)
    if asked or name is not None:
        which = f"its part {name!r}" if name else "the model"
        raise UnsupportedError(
            f"{which} of {type(module).__name__} is run by torch.compile, whose graphs keep "
            "their tensors out of the tape's sight; train without torch.compile, or without "
            "this callback"
        )
