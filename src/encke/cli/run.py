"""`encke run`: a training script as it is, with its activations kept compressed."""

from __future__ import annotations

import argparse
import builtins
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encke.integrations.script import Attachment, Discovery, MakePolicy

_DESCRIPTION = """\
Run a training script as `python SCRIPT ARGS` would. Its model is found when it is first called
with gradients on and an optimizer holds parameters of it; from that call on, what it saves for
backward is kept compressed. At the end one line on stderr says what was found and kept."""

_POLICY_HELP = (
    "who sets the bounds: adaptive (the controller, default), comet, bits:N (N bits a value, "
    "shared out by sensitivity), lossless, or one bound for everything: abs:E, range:R, rms:R, "
    "pointwise:R, rate:BITS"
)


def add_to(commands: Any) -> None:
    """Add `run` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a training script with compressed activations",
        description=_DESCRIPTION,
        allow_abbrev=False,  # what follows the script is for the script
        usage="encke run [-h] [--tolerance T] [--policy P] [--log FILE] script [args ...]",
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
        "--log",
        type=Path,
        metavar="FILE",
        help="append a line of JSON for each model at the end: steps, bytes kept, plain bytes",
    )
    command.add_argument("script", help="Python file to run")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="for the script")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the script; its exit code, or 1 if it raised, as python's own."""
    source = Path(arguments.script).read_bytes()
    make_policy = policy_named(arguments.policy, tolerance=arguments.tolerance)

    from encke.control import Adaptive
    from encke.integrations.script import Discovery

    tolerance = 0.01 if arguments.tolerance is None else arguments.tolerance
    Adaptive(tolerance)  # raises now, and not in the script, if it cannot be meant
    with Discovery(tolerance=tolerance, make_policy=make_policy) as found:
        try:
            return _run_as_main(arguments.script, source, arguments.arguments)
        finally:
            _report(found, arguments.log)


def policy_named(text: str, *, tolerance: float | None = None) -> MakePolicy | None:
    """What makes the policy that `--policy` names; None for the controller."""
    from encke.bound import Lossless
    from encke.bound.kinds import KINDS, from_code
    from encke.control import Comet, Fixed, GroupBits
    from encke.errors import UnsupportedError

    if text == "adaptive":
        return None
    if tolerance is not None:
        raise UnsupportedError(
            f"--tolerance {tolerance:g} is for the policy adaptive, but --policy is {text!r}; "
            "give one of them"
        )
    if text == "comet":
        return lambda model, optimizers: Comet(model=model, optimizers=optimizers)
    if text == "lossless":
        return lambda _model, _optimizers: Fixed(Lossless())
    kind, _, written = text.partition(":")
    codes = {cls.kind: code for code, cls in KINDS.items() if cls is not Lossless}
    try:
        number = float(written)
    except ValueError:
        number = None
    if number is None or kind not in {"bits", *codes}:
        allowed = ", ".join(f"{name}:NUMBER" for name in ("bits", *codes))
        raise UnsupportedError(
            f"--policy is {text!r}, allowed are adaptive, comet, lossless, {allowed}"
        )
    if kind == "bits":
        GroupBits(number)  # raises now, and not in the script, if it cannot be meant
        return lambda _model, _optimizers: GroupBits(number)
    bound = from_code(codes[kind], number)
    return lambda _model, _optimizers: Fixed(bound)


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


# -- the report ------------------------------------------------------------------------------


def _report(found: Discovery, log: Path | None) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    who = f"encke, rank {rank}" if ranks > 1 else "encke"
    print(f"{who}: {_in_words(found)}", file=sys.stderr)
    if log is None:
        return
    lines = [json.dumps({"rank": rank, **facts}) + "\n" for facts in _facts(found)]
    try:
        with log.open("a") as file:  # several ranks may write
            file.write("".join(lines))
    except OSError as error:
        print(f"{who}: no log: {log}: {error.strerror}", file=sys.stderr)


def _in_words(found: Discovery) -> str:
    if found.attachments:
        return "; ".join(map(_kept_in_words, found.attachments))
    if found.refusals:
        reason = "; ".join(found.refusals)
    elif found.optimizers_seen:
        names = ", ".join(sorted(set(found.optimizers_seen)))
        reason = (
            "no module that was called with gradients on, and not inside torch.compile, holds "
            f"parameters of {names}"
        )
    else:
        reason = "the script made no torch.optim.Optimizer"
    return f"nothing was compressed: {reason}"


def _kept_in_words(one: Attachment) -> str:
    steps = "1 step" if one.steps == 1 else f"{one.steps:,} steps"
    ratio = f", {one.plain_peak / one.stored_peak:.2f}×" if one.stored_peak else ""
    return (
        f"{one.module} ({', '.join(one.optimizers)}), {steps}: at most {one.stored_peak:,} "
        f"bytes kept for backward in place of {one.plain_peak:,}{ratio}"
    )


def _facts(found: Discovery) -> list[dict[str, Any]]:
    return [
        {
            "model": one.module,
            "optimizers": one.optimizers,
            "steps": one.steps,
            "peak_stored_bytes": one.stored_peak,
            "peak_plain_bytes": one.plain_peak,
        }
        for one in found.attachments
    ] or [
        {
            "model": None,
            "optimizers": found.optimizers_seen,
            "steps": 0,
            "peak_stored_bytes": 0,
            "peak_plain_bytes": 0,
        }
    ]
