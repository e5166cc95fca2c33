"""Which pages the patterns of an index name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

_DIRECTIVE = re.compile(r"^```\{pages\}\n(.*?)^```", re.MULTILINE | re.DOTALL)


def patterns(index: str) -> list[str]:
    """What the directives of an index name, in order.

    >>> patterns("```{pages}\\n:caption: How to\\n\\nhow-to-*\\ntape\\n```\\n")
    ['how-to-*', 'tape']
    """
    lines = [line.strip() for body in _DIRECTIVE.findall(index) for line in body.splitlines()]
    return [line for line in lines if line and not line.startswith(":")]


def named(wanted: Iterable[str], pages: Iterable[str]) -> list[str]:
    """The pages that patterns name, each once; a pattern may name none.

    >>> named(["tape", "how-to-*", "*"], ["how-to-b", "tape", "how-to-a", "wire"])
    ['tape', 'how-to-a', 'how-to-b', 'wire']
    """
    there = sorted(pages)
    found = [page for pattern in wanted for page in there if fnmatchcase(page, pattern)]
    return list(dict.fromkeys(found))
