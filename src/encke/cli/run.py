"""`encke run`: a training script as it is, with its activations kept compressed."""

from __future__ import annotations

import argparse
import builtins
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_DESCRIPTION = """\
Run a training script as `python SCRIPT ARGS` would. Its model is found when it is first called
with gradients on and an optimizer holds parameters of it; from that call on, what it saves for
backward is stored compressed. At the end one line on stderr says what was found and stored, the
peak of the process, and if little was saved, why. Whatever goes wrong inside Encke while it
looks for a model or attaches to it, the script runs on as it would plainly."""

_POLICY_HELP = (
    "who sets the bounds: adaptive (the controller, default), comet, bits:N (N bits a value, "
    "shared out by sensitivity), lossless, or one bound for everything: abs:E, range:R, rms:R, "
    "pointwise:R, rate:BITS"
)

_PROGRESS = 30.0  # seconds between lines


def add_to(commands: Any) -> None:
    """Add `run` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a training script with compressed activations",
        description=_DESCRIPTION,
        allow_abbrev=False,  # what follows the script is for the script
        usage="encke run [-h] [--tolerance T] [--policy P] [--slowdown S] [--log FILE] "
        "[--summary] [--progress] script [args ...]",
    )
    command.add_argument(
        "--tolerance",
        type=float,
        metavar="T",
        help="variance that compression may add to the gradients, as a share of their own "
        "scale (default 0.01); for the policy adaptive",
    )
    command.add_argument("--policy", default="adaptive", metavar="P", help=_POLICY_HELP)
    command.add_argument(
        "--slowdown",
        type=float,
        metavar="S",
        help="time that Encke may take, as a share of a step without it (default 0.3, with "
        "another policy any; inf for any): what saves the fewest bytes for its time is left "
        "as it is",
    )
    command.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="append a line of JSON for each model at the end: steps, bytes stored and plain, "
        "process peak, seconds",
    )
    command.add_argument(
        "--summary",
        action="store_true",
        help="print at the end what is stored, tensor by tensor, how, and why",
    )
    command.add_argument(
        "--progress",
        action="store_true",
        help=f"print a line about every {_PROGRESS:.0f} seconds",
    )
    command.add_argument("script", help="Python file to run")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="for the script")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the script; its exit code, or 1 if it raised, as python's own."""
    source = Path(arguments.script).read_bytes()

    from encke.integrations.following import follow
    from encke.integrations.workers import RunOptions

    options = RunOptions(
        tolerance=arguments.tolerance,
        policy=arguments.policy,
        slowdown=arguments.slowdown,
        report={
            "log": None if arguments.log is None else arguments.log.absolute(),
            "summary": arguments.summary,
            "progress": _PROGRESS if arguments.progress else None,
        },
    )
    with follow(options):
        return _run_as_main(arguments.script, source, arguments.arguments)


# -- the script ------------------------------------------------------------------------------


def _run_as_main(script: str, source: bytes, arguments: Sequence[str]) -> int:
    """Execute `source` as the module __main__ of this process, which is the script's now."""
    path = os.path.abspath(script)
    main = ModuleType("__main__")
    vars(main).update(__file__=path, __builtins__=builtins, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    try:
        exec(compile(source, path, "exec", dont_inherit=True), vars(main))
    except SystemExit:
        raise
    except BaseException as error:
        # Told here and not by the command, for which an OSError would be one of its own.
        _tell(error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _tell(error: BaseException) -> None:
    """Let the excepthook print `error` without the frame of this module."""
    trace = error.__traceback__
    trace = trace.tb_next if trace is not None else None
    error.__traceback__ = trace
    sys.excepthook(type(error), error, trace)
