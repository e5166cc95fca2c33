"""What the callbacks for trainers have in common."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn
from torch.optim import Optimizer

from encke.control import attach
from encke.control.arguments import trains
from encke.control.effectiveness import say
from encke.control.hooks import hooks_of
from encke.errors import EnckeError
from encke.integrations.survival import in_words
from encke.tape import Tape
from encke.tape.compiled import compiled_module

log = logging.getLogger("encke")


def attach_if_possible(
    model: nn.Module, optimizers: Any, options: dict[str, Any]
) -> Tape | None:
    """Attach to a trainer's model; None, with a warning, if it cannot be.

    Optimizers that hold copies of the parameters, as some strategies do, are left out.
    """
    given = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers or ())
    own = [one for one in given if isinstance(one, Optimizer) and trains(one, model)]
    try:
        return attach(model, own, **options)
    except Exception as error:
        words = str(error) if isinstance(error, EnckeError) else in_words(error)
        log.warning("%s is trained without Encke: %s", type(model).__name__, words)
        return None


def say_at_end(model: nn.Module, *, compiled: bool) -> None:
    """Warn if the tape of a model had no effect and nothing was said of it yet.

    compiled  whether the trainer was told to compile, wherever it did
    """
    hooks = hooks_of(compiled_module(model))
    if hooks is not None:
        hooks.was_compiled |= compiled
        say(hooks)
