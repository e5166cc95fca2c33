"""A directive that shows what `encke COMMAND --help` prints."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

from encke.cli import parser


def helps() -> Iterator[tuple[str, str]]:
    """Every command and its help, commands of commands after their own."""
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "88"  # where argparse breaks lines
    try:
        yield from _below(parser())
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns


def _below(command: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield inner.prog, inner.format_help()
                yield from _below(inner)


class CommandHelp(Directive):
    """A section for every command."""

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for name, text in helps():
            section = nodes.section(ids=[nodes.make_id(name)], names=[name])
            section += nodes.title(text=name)
            section += nodes.literal_block(text, text, language="text")
            found.append(section)
        return found


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
