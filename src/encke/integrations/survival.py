"""A script goes on as it would plainly when something goes wrong inside a tape.

`encke run` compresses scripts that know nothing of Encke, so an error inside Encke must not
end them. Whatever is raised while a forward pass is watched ends the tape: what it has stored
by then comes back in backward as always, and everything after stays with autograd. An error in
backward cannot be survived: what was stored is then all there is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from encke.errors import UnsupportedError
from encke.tape import Tape


def survive_errors(tape: Tape, told: Callable[[str], None]) -> None:
    """Have errors inside of `tape` end the tape; `told` gets the reason in words."""
    failed: list[Exception] = []

    def fail(error: Exception) -> None:
        if not failed:
            told(f"an error inside Encke ended the tape: {in_words(error)}")
        failed.append(error)
        tape.stop_watching()

    def guarded(name: str) -> None:
        original = getattr(tape, name)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> None:
            if failed:
                return
            try:
                original(*args, **kwargs)
            except Exception as error:
                fail(error)

        setattr(tape, name, call)

    for name in ("_seen", "_settle", "end_forward", "report"):
        guarded(name)
    begin, end = tape.begin_call, tape.end_call

    @wraps(begin)
    def begin_call(*args: Any, **kwargs: Any) -> None:
        if failed:
            return
        try:
            begin(*args, **kwargs)
        except UnsupportedError as error:
            told(str(error))  # of this call alone: under torch.func, say
        except Exception as error:
            fail(error)

    @wraps(end)
    def end_call(*args: Any, **kwargs: Any) -> None:
        try:
            end(*args, **kwargs)
        except Exception as error:
            fail(error)
        if failed:
            tape.detach()

    setattr(tape, "begin_call", begin_call)  # noqa: B010
    setattr(tape, "end_call", end_call)  # noqa: B010


def in_words(error: BaseException) -> str:
    """The kind of an error and its first line.

    >>> in_words(ValueError("too\\nlong"))
    'ValueError: too'
    """
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
