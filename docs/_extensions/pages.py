"""A table of contents by pattern, in which a pattern may stand for nothing yet.

    ```{pages}
    :caption: How to
    how-to-*
    telemetry
    ```

Other parts of the project bring pages of their own: those that no pattern of the index names
appear where `:others:` is given, so that a new page is found without a change here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.directives.other import TocTree

_DIRECTIVE = re.compile(r"^```\{pages\}\n(.*?)^```", re.MULTILINE | re.DOTALL)


def patterns(index: str) -> list[str]:
    """What the directives of an index name, in order.

    >>> patterns("```{pages}\\n:caption: How to\\n\\nhow-to-*\\ntape\\n```\\n")
    ['how-to-*', 'tape']
    """
    lines = [line.strip() for body in _DIRECTIVE.findall(index) for line in body.splitlines()]
    return [line for line in lines if line and not line.startswith(":")]


def matching(pattern: str, pages: Iterable[str]) -> list[str]:
    """The pages that a pattern names, in order of their names; none is allowed."""
    return sorted(page for page in pages if fnmatchcase(page, pattern))


class Pages(TocTree):
    """A toctree of what its patterns find."""

    option_spec: ClassVar[Any] = {**TocTree.option_spec, "others": directives.flag}

    def run(self) -> list[nodes.Node]:
        here, existing = self.env.docname, set(self.env.found_docs)
        found = [page for line in self.content for page in matching(line, existing)]
        if "others" in self.options:
            index = self.env.doc2path(here)
            with open(index, encoding="utf-8") as file:
                named = [p for line in patterns(file.read()) for p in matching(line, existing)]
            found += sorted(existing - set(named) - {here})
        if not found:
            return []
        unique = list(dict.fromkeys(found))
        self.content = StringList(unique, items=[(here, self.lineno)] * len(unique))
        return super().run()


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.add_directive("pages", Pages)
    return {"parallel_read_safe": True}
