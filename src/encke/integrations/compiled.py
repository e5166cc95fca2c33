"""What is said when a model that torch.compile runs kept nothing through its tape."""

from __future__ import annotations

import logging

from torch import nn

from encke.tape import Tape
from encke.tape.graph import is_compiled

log = logging.getLogger("encke")


def say_if_nothing_was_kept(tape: Tape, module: nn.Module, *, asked: bool = False) -> bool:
    """Warn, and return True, if `module` was compiled so that its tape kept nothing.

    asked  whether the loop was told to compile, wherever it did

    Graphs keep their tensors through a tape if Inductor compiles them; a backend without
    AOTAutograd, or with a partitioner of its own, leaves them to autograd.
    """
    if len(tape.records) or not (asked or any(map(is_compiled, module.modules()))):
        return False
    log.warning(
        "nothing of %s was kept compressed: it was compiled by a backend that does not keep "
        "its tensors through a tape; use torch.compile's default backend, inductor "
        "(docs/compile.md)",
        type(module).__name__,
    )
    return True
