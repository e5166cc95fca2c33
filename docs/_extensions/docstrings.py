"""The project's docstrings as reStructuredText, for Sphinx.

Docstrings here are written to be read as they are: `names` in single backticks, a column of
names with what they mean beside them, formulas indented by four spaces. `to_rst` gives each its
form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

#: A name, or several, then at least two spaces, then what it means.
_ENTRY = re.compile(r"(?P<name>[\w.*=`\"]+(?:(?:/|, ?)[\w.*=`\"]+)*) {2,}(?P<about>\S.*)")


def to_rst(lines: Sequence[str]) -> list[str]:
    """A docstring's lines, without its outer indentation, for Sphinx.

    >>> to_rst(["Sums.", "", "first   one number", "second  another,", "        or none"])
    ['Sums.', '', '``first``', '   one number', '``second``', '   another, or none', '']
    """
    result: list[str] = []
    for blank, group in groupby(lines, key=lambda line: not line.strip()):
        if not blank:
            result += [*_paragraph(list(group)), ""]
    return result


def _paragraph(lines: list[str]) -> list[str]:
    if lines[0].lstrip().startswith(">>>"):
        return lines
    if all(line.startswith("    ") for line in lines):
        return ["::", "", *lines]
    if lines[0].startswith("- "):
        return [_prose(line) for line in lines]
    for start, line in enumerate(lines):
        if _ENTRY.fullmatch(line) and _is_table(lines[start:]):
            before = [_prose(line) for line in lines[:start]]
            return [*before, *([""] if before else []), *_definitions(lines[start:])]
    return [_prose(line) for line in lines]


def _is_table(lines: list[str]) -> bool:
    """Whether every line is an entry or goes on with one."""
    return all(line.startswith(" ") or _ENTRY.fullmatch(line) for line in lines)


def _definitions(lines: list[str]) -> list[str]:
    entries: list[tuple[str, list[str]]] = []
    for line in lines:
        found = _ENTRY.fullmatch(line)
        if found:
            entries.append((found["name"], [found["about"]]))
        else:
            entries[-1][1].append(line.strip())
    result = []
    for name, about in entries:
        result += [f"``{name.replace('`', '')}``", f"   {_prose(' '.join(about))}"]
    return result


def _prose(line: str) -> str:
    """Names in double backticks; nothing else is markup."""
    parts = line.split("`")
    if len(parts) % 2 == 0:  # a name that goes on in the next line
        return re.sub(r"([*|\\`])", r"\\\1", line)
    return "".join(
        f"``{part}``" if place % 2 else re.sub(r"([*|\\])|_(?=\W|$)", _escaped, part)
        for place, part in enumerate(parts)
    )


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def _process(
    _app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    lines[:] = to_rst(lines)


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
