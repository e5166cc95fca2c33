"""The report of a study as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from string import Template
from typing import Any

from encke.study.report.answer import answer, headline
from encke.study.report.comparison import Comparison, compare
from encke.study.report.embed import dumped, fitted
from encke.study.report.fields import Row, entries, text
from encke.study.report.markup import Markup, clean, element, joined
from encke.study.report.numbers import counted, listed
from encke.study.report.recommend import best_overall
from encke.study.report.sections import by_scene, conditions, unfinished
from encke.study.report.view import first_details, view

#: In the order in which they stand in the page: later ones use what earlier ones define.
SCRIPTS = (
    "svg.js",
    "numbers.js",
    "scale.js",
    "marks.js",
    "frame.js",
    "pointing.js",
    "table.js",
    "front.js",
    "curves.js",
    "time.js",
    "timeline.js",
    "histogram.js",
    "layers.js",
    "gradients.js",
    "theme.js",
    "page.js",
)


def page(study: dict[str, Any], rows: list[Row]) -> str:
    """The whole page, from a study and its rows as `encke.study.results.read` gives them.

    Nothing in a row is trusted: names are escaped, what is missing or not finite is left out,
    and the page's own policy forbids it to load or run anything but what it contains.

    >>> html = page({"name": "empty", "cells": []}, [])
    >>> html.startswith("<!doctype html>"), "No cell of this study has finished" in html
    (True, True)
    """
    comparison = compare(rows)
    best = best_overall(comparison)
    shown, left_out = fitted(comparison, first=first_details(comparison))
    style = _asset("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, SCRIPTS)) + "\n})();\n"
    title = text(study, "title") or text(study, "name", default="Study")
    versions = sorted({text(row, "environment", "encke") for row in rows} - {""})
    return Template(_asset("page.html")).substitute(
        policy=(
            f"default-src 'none'; img-src data:; script-src '{_digest(script)}'; "
            f"style-src '{_digest(style)}'; base-uri 'none'; form-action 'none'"
        ),
        title=clean(f"{title}: Encke study"),
        style=style,
        name=clean(title),
        extent=_extent(study, comparison),
        headline=clean(headline(comparison, best)),
        answer=answer(comparison, best),
        scenes=by_scene(comparison),
        unfinished=unfinished(study, rows),
        conditions=conditions(study, comparison),
        left_out=clean(left_out),
        version=clean(f", Encke {listed(versions)}" if versions else ""),
        results=dumped({"study": study, "rows": shown}),
        view=dumped(view(comparison, recommended=best)),
        script=script,
    )


def _extent(study: dict[str, Any], comparison: Comparison) -> Markup:
    count = len(comparison.rows)
    planned = max(count, len(entries(study, "cells")))
    parts = [
        counted(len({scene.model for scene in comparison.scenes}), "network"),
        counted(len({scene.data for scene in comparison.scenes}), "data set"),
        counted(len(comparison.policies), "setting"),
        counted(count, "training") if count == planned else f"{count} of {planned} trainings",
    ]
    failed = sum(len(group.failed) for group in comparison.groups)
    link = element("a", f"{failed} failed", href="#unfinished")
    return joined([" · ".join(parts), *([", ", link] if failed else [])])


def _asset(name: str) -> str:
    folder = resources.files("encke.study.report").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _digest(source: str) -> str:
    """The name under which a content security policy knows an inline script or style."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
