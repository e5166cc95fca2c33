"""Parts of the page that need no script: each network's result, failures, conditions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from encke.study.report.comparison import Comparison, Group
from encke.study.report.fields import Row, entries, field, is_done, number, text
from encke.study.report.markup import Markup, element, joined, table
from encke.study.report.numbers import NONE, counted, difference, digits, measure, size, times
from encke.study.report.recommend import best_in, saving

#: Characters of a traceback and of a message, failures with a traceback, missing cells by name.
_TRACEBACK, _MESSAGE, _TRACED, _NAMED = 8_000, 600, 30, 20


def by_scene(comparison: Comparison) -> Markup:
    """Plain against the best setting, for each network and data."""
    rows = [_scene_row(comparison, scene) for scene in range(len(comparison.scenes))]
    columns = [
        "network and data",
        "best setting there",
        "metric",
        "plain",
        "with it",
        "change",
        "kept for backward",
        "less",
        "step time",
    ]
    return table(columns, rows, caption="The best setting for each network and data", text=3)


def _scene_row(comparison: Comparison, place: int) -> list[str]:
    scene = comparison.scenes[place]
    unit = scene.metric.unit
    groups = comparison.within(place)
    plain = comparison.plain_of(groups[0])
    best = best_in(comparison, place)
    judged = NONE
    if any(group.metric for group in groups):
        better = "lower" if scene.metric.lower_is_better else "higher"
        judged = f"{scene.metric.name}, {better} is better"
    row = [scene.label, comparison.label(best) if best else "none", judged]
    before = plain.metric.mean if plain and plain.metric else None
    row.append(measure(before, unit))
    if best is None or best.metric is None or before is None:
        held = size(plain.stored.mean) if plain and plain.stored else NONE
        return [*row, NONE, NONE, held, NONE, NONE]
    return [
        *row,
        measure(best.metric.mean, unit),
        difference(best.metric.mean - before, unit),
        _from_to(best),
        times(saving(best)),
        times(best.time.mean if best.time else None),
    ]


def _from_to(group: Group) -> str:
    if group.plain is None or group.stored is None:
        return NONE
    return f"{size(group.plain.mean)} → {size(group.stored.mean)}"


def unfinished(study: dict[str, Any], rows: list[Row]) -> Markup:
    """Cells that failed, with their errors, and those that have no result; empty if none."""
    failed = [row for row in rows if not is_done(row)]
    known = {text(row, "cell") for row in rows}
    missing = [str(cell) for cell in entries(study, "cells") if str(cell) not in known]
    parts = []
    if failed:
        parts.append(
            element(
                "p", f"{counted(len(failed), 'cell')} of {len(rows) + len(missing)} failed."
            )
        )
        listed = [_failure(row, traced=i < _TRACED) for i, row in enumerate(failed)]
        parts.append(element("ul", *listed, class_="failures"))
    if missing:
        names = ", ".join(missing[:_NAMED]) + (" …" if len(missing) > _NAMED else "")
        parts.append(
            element(
                "p",
                f"{counted(len(missing), 'cell')} not run yet or interrupted: ",
                element("span", names, class_="name"),
                ". The study continues where it stopped when it is run again.",
            )
        )
    if not parts:
        return Markup("")
    title = "Failed and missing cells" if failed else "Missing cells"
    return element(
        "section",
        element("h2", title, id="unfinished-title"),
        *parts,
        id="unfinished",
        aria_labelledby="unfinished-title",
    )


def _failure(row: Row, *, traced: bool) -> Markup:
    kind = text(row, "error", "type", default="unknown error")
    message = text(row, "error", "message")
    if len(message) > _MESSAGE:
        message = message[:_MESSAGE] + "…"
    trace = text(row, "error", "traceback") if traced else ""
    if len(trace) > _TRACEBACK:
        trace = "…" + trace[-_TRACEBACK:]
    return element(
        "li",
        element(
            "b",
            f"{text(row, 'policy', default='(unnamed)')}, {text(row, 'model')} on "
            f"{text(row, 'data')}, seed {text(row, 'seed', default=NONE)}",
        ),
        ": ",
        element("code", kind),
        " ",
        message,
        element("details", element("summary", "Traceback"), element("pre", trace, tabindex="0"))
        if trace
        else Markup(""),
    )


def conditions(study: dict[str, Any], comparison: Comparison) -> Markup:
    """What was run, and on what."""
    rows = []
    for place, scene in enumerate(comparison.scenes):
        done = [comparison.rows[i] for group in comparison.within(place) for i in group.done]
        rows.append(
            [
                scene.label,
                _told(done, "training", "optimizer"),
                _told(done, "training", "rate"),
                _told(done, "training", "batch"),
                _told(done, "training", "epochs"),
                _told(done, "training", "steps"),
                _told(done, "training", "parameters"),
            ]
        )
    columns = [
        "network and data",
        "optimizer",
        "rate",
        "batch",
        "epochs",
        "steps",
        "parameters",
    ]
    done = [row for row in comparison.rows if is_done(row)]
    machine = [
        (name, _told(done, "environment", key))
        for name, key in (
            ("Encke", "encke"),
            ("torch", "torch"),
            ("Python", "python"),
            ("backend", "backend"),
            ("instruction set", "instruction_set"),
            ("threads", "threads"),
            ("processor", "processor"),
        )
    ]
    spent = sum(number(row, "seconds") or 0 for row in comparison.rows)
    machine.append(("time of all cells", _duration(spent)))
    if field(study, "created"):
        machine.append(("study made", _moment(text(study, "created"))))
    return joined(
        [
            table(columns, rows, caption="How each network was trained", text=2),
            element(
                "dl",
                *(
                    element("div", element("dt", name), element("dd", value))
                    for name, value in machine
                    if value != NONE
                ),
                class_="conditions",
            ),
        ]
    )


def _told(rows: list[Row], *path: str) -> str:
    """What the rows say, or what all of them say."""
    found: dict[str, None] = {}
    for row in rows:
        value = field(row, *path)
        if value is not None:
            known = number(row, *path)
            found.setdefault(str(value) if known is None else digits(known, 7))
    said = list(found)
    return ", ".join(said[:4]) + (" …" if len(said) > 4 else "") if said else NONE


def _moment(written: str) -> str:
    """A time as people write it; what is no time, as it is.

    >>> _moment("2026-01-02T03:04:05+00:00"), _moment("yesterday")
    ('2026-01-02 03:04 UTC', 'yesterday')
    """
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return written
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".rstrip()


def _duration(seconds: float) -> str:
    """
    >>> _duration(42), _duration(600), _duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
