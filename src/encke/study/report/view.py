"""What the page's script draws from: groups with their figures, judged and in order.

Everything that is computed is computed here, so that pictures, tables and sentences agree; the
script places marks and writes labels.
"""

from __future__ import annotations

from typing import Any

from encke.study.report.comparison import Comparison, Group, Span
from encke.study.report.fields import entries, field, number
from encke.study.report.recommend import (
    Verdict,
    allowance,
    best_in,
    front,
    loss,
    saving,
    trains_as_well,
)

#: The quantities that a training's course is shown by.
COURSES = ("train_loss", "test_loss", "metric")


def view(comparison: Comparison, *, recommended: Verdict | None) -> dict[str, Any]:
    """Everything but the rows, ready for JSON."""
    fronts = [
        (
            front(comparison, scene, lambda group: group.stored),
            front(comparison, scene, lambda group: group.peak),
        )
        for scene in range(len(comparison.scenes))
    ]
    best = [best_in(comparison, scene) for scene in range(len(comparison.scenes))]
    return {
        "scenes": [_scene(comparison, place) for place in range(len(comparison.scenes))],
        "policies": [
            {
                "label": policy.label,
                "kind": policy.kind,
                "variant": policy.variant,
                "peer": policy.is_peer,
            }
            for policy in comparison.policies
        ],
        "recommended": None if recommended is None else recommended.policy,
        "groups": [
            {
                "scene": group.scene,
                "policy": group.policy,
                "rows": list(group.done),
                "failed": len(group.failed),
                "metric": _span(group.metric),
                "stored": _span(group.stored),
                "plain": _span(group.plain),
                "peak": _span(group.peak),
                "time": _span(group.time),
                "saving": saving(group),
                "loss": loss(comparison, group),
                "asWell": trains_as_well(comparison, group),
                "front": {
                    "stored": group.policy in fronts[group.scene][0],
                    "peak": group.policy in fronts[group.scene][1],
                },
                "best": group is best[group.scene],
                "curve": course(comparison, group),
            }
            for group in comparison.groups
        ],
    }


def _scene(comparison: Comparison, place: int) -> dict[str, Any]:
    """A scene; `floor` is the worst mean that still counts as good as plain's."""
    scene = comparison.scenes[place]
    plain = comparison.plain_of(comparison.within(place)[0])
    mean = floor = None
    if plain is not None and plain.metric is not None:
        mean = plain.metric.mean
        room = allowance(plain.metric, scene.metric)
        floor = mean + room if scene.metric.lower_is_better else mean - room
    return {
        "label": scene.label,
        "model": scene.model,
        "data": scene.data,
        "metric": {
            "name": scene.metric.name,
            "unit": scene.metric.unit,
            "lower": scene.metric.lower_is_better,
        },
        "plain": mean,
        "floor": floor,
    }


def course(comparison: Comparison, group: Group) -> dict[str, Any]:
    """Mean, lowest and highest over seeds, step by step; None where no seed has a value."""
    factors = dict.fromkeys(COURSES, 1.0)
    factors["metric"] = comparison.scenes[group.scene].metric.factor
    points: dict[float, list[Any]] = {}
    for i in group.done:
        for point in entries(comparison.rows[i], "curve"):
            step = number(point, "step")
            if step is not None:
                points.setdefault(step, []).append(point)
    steps = sorted(points)
    return {
        "steps": steps,
        **{
            key: [_band(points[step], key, factor=factors[key]) for step in steps]
            for key in COURSES
        },
    }


def _band(points: list[Any], key: str, *, factor: float) -> list[float] | None:
    span = Span.over(number(point, key) for point in points)
    if span is None:
        return None
    return [float(f"{value * factor:.5g}") for value in (span.mean, span.low, span.high)]


def _span(span: Span | None) -> dict[str, float] | None:
    if span is None:
        return None
    return {"mean": span.mean, "low": span.low, "high": span.high, "count": span.count}


def first_details(comparison: Comparison) -> list[int]:
    """Rows whose details matter most: those of the best setting of each scene."""
    found = []
    for scene in range(len(comparison.scenes)):
        best = best_in(comparison, scene)
        if best is not None:
            found += [i for i in best.done if field(comparison.rows[i], "layers")][:1]
    return found
