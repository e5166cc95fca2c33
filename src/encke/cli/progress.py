"""A progress bar where someone watches, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def tracked(items: Sequence[T], doing: str) -> Iterator[T]:
    """The items, with a bar on stderr if that is a terminal and there are several."""
    if len(items) < 2 or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=doing, console=Console(stderr=True), transient=True)


def announced(items: Sequence[T], doing: str) -> Iterator[T]:
    """The items, each announced on a terminal; no thread redraws while one is timed."""
    terminal = sys.stderr.isatty()
    for number, item in enumerate(items, start=1):
        if terminal:
            print(f"\r{doing}, {number} of {len(items)}", end="", file=sys.stderr, flush=True)
        yield item
    if terminal:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
