"""The command `encke`: files in, files out, and what the library does on this machine.

Only argparse is imported until a command runs, so `encke --help` does not wait for torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from encke import __version__
from encke.cli import bench, compress, decompress, doctor, info, run, store, study, train, wire
from encke.errors import EnckeError, OutputError

_COMMANDS = (compress, decompress, info, bench, doctor, run, store, study, train, wire)


def parser() -> argparse.ArgumentParser:
    """The whole command line; each command's module adds its own part."""
    top = argparse.ArgumentParser(
        prog="encke",
        description="Error-bounded lossy compression of tensors.",
        epilog="`encke COMMAND --help` explains a command.",
    )
    top.add_argument("--version", action="version", version=f"encke {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_to(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it did what was asked.

    1 means that a check failed (`--verify`, `doctor`), 2 that the request or a file
    cannot be worked with: one line on stderr says why. 130 is Ctrl-C.
    """
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        _flush_output()
    except EnckeError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        # The reader of our output has gone; nothing is left to be told to anyone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        reason = error.strerror or str(error)
        return _refuse(f"{error.filename}: {reason}" if error.filename else reason)
    except MemoryError as error:
        return _refuse(f"not enough memory: {error}")
    except KeyboardInterrupt:
        print("encke: interrupted", file=sys.stderr)
        return 130
    return code


def _flush_output() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output: {error.strerror}") from None


def _refuse(reason: str) -> int:
    print("encke:", " ".join(reason.split()), file=sys.stderr)
    return 2
