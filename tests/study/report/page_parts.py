"""Reading a page as a browser would, without one."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

_VOID = {"meta", "input", "br", "hr", "img", "link"}


class Page(HTMLParser):
    """Elements, texts and embedded data of a page; raises where tags do not match."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: dict[str, str] = {}
        self.style = ""
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(source)
        self.close()
        assert self._open == [], "elements that are not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        opened, _ = self._open.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}>"

    def handle_data(self, data: str) -> None:
        tag, attributes = self._open[-1] if self._open else ("", {})
        if tag == "script":
            key = attributes.get("id") or "program"
            self.scripts[key] = self.scripts.get(key, "") + data
        elif tag == "style":
            self.style += data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    @property
    def results(self) -> Any:
        return json.loads(self.scripts["study-results"])

    @property
    def view(self) -> Any:
        return json.loads(self.scripts["study-view"])
