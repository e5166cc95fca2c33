"""HTML that cannot be broken by what it shows: text is escaped unless it is `Markup`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | None) -> Markup:
    """One element. An underscore at the end of an attribute's name goes, others become dashes.

    >>> element("p", "a < b ", element("b", "bold"), class_="note", title=None)
    '<p class="note">a &lt; b <b>bold</b></p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{clean(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Markup:
    """
    >>> joined(["<", Markup("<br>")])
    '&lt;<br>'
    """
    return Markup("".join(c if isinstance(c, Markup) else clean(c) for c in children))


def clean(text: str) -> str:
    """Escaped, and without what cannot be written as UTF-8 or is no character of HTML."""
    written = str(text).encode("utf-8", "replace").decode("utf-8")
    shown = (
        c if c in "\n\t" or c.isprintable() or c.isspace() else "\N{REPLACEMENT CHARACTER}"
        for c in written
    )
    return escape("".join(shown))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, text: int = 1
) -> Markup:
    """A table whose first `text` columns are words and whose others are figures.

    Each figure names its column, so that a narrow screen can show a row as a list.
    """

    def cell(place: int, content: str) -> Markup:
        if place == 0:
            return element("th", content, scope="row")
        kind = None if place < text else "figure"
        return element("td", content, class_=kind, data_label=columns[place])

    head = (
        element("th", name, scope="col", class_=None if place < text else "figure")
        for place, name in enumerate(columns)
    )
    body = (
        element("tr", *(cell(place, content) for place, content in enumerate(row)))
        for row in rows
    )
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", element("tr", *head)),
            element("tbody", *body),
        ),
        class_="wide",
        tabindex="0",
        role="region",
        aria_label=caption,
    )
