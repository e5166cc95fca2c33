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

from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from page_patterns import named, patterns
from sphinx.directives.other import TocTree


class Pages(TocTree):
    """A toctree of what its patterns find."""

    option_spec: ClassVar[Any] = {**TocTree.option_spec, "others": directives.flag}

    def run(self) -> list[nodes.Node]:
        here, existing = self.env.docname, set(self.env.found_docs)
        found = named(self.content, existing)
        if "others" in self.options:
            index = Path(self.env.doc2path(here)).read_text(encoding="utf-8")
            found += sorted(existing - set(named(patterns(index), existing)) - {here})
        if not found:
            return []
        self.options["glob"] = None  # Sphinx then reads the index again when pages come or go
        self.content = StringList(found, items=[(here, self.lineno)] * len(found))
        return super().run()


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.add_directive("pages", Pages)
    return {"parallel_read_safe": True}
