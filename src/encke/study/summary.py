"""A study's table: what every way came to, over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from encke.study.results import Row

#: Columns of `table` that are names, not numbers.
NAMES = 3


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One way to train one network on one data set: means over the seeds.

    metric    of the last point of the curve, in `unit`; `spread` is its standard deviation
    ratio     plain bytes over stored bytes
    peak      the most bytes of the process in any step, above what it had before the first
    relative  time of a step over that of a plain one
    failed    cells that have none of this
    """

    model: str
    data: str
    policy: str
    seeds: int
    failed: int
    name: str = ""
    unit: str = ""
    metric: float | None = None
    spread: float | None = None
    ratio: float | None = None
    peak: float | None = None
    relative: float | None = None


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """In the order in which the rows first name them."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["data"], row["policy"]), []).append(row)
    return [_summary(*names, group) for names, group in groups.items()]


def _summary(model: str, data: str, policy: str, rows: list[Row]) -> Summary:
    done = [row for row in rows if row["status"] == "done"]
    if not done:
        return Summary(model=model, data=data, policy=policy, seeds=0, failed=len(rows))
    finals = [row["metric"]["final"] for row in done if row["metric"]["final"] is not None]
    return Summary(
        model=model,
        data=data,
        policy=policy,
        seeds=len(done),
        failed=len(rows) - len(done),
        name=done[0]["metric"]["name"],
        unit=done[0]["metric"]["unit"],
        metric=_mean(finals),
        spread=statistics.stdev(finals) if len(finals) > 1 else None,
        ratio=_mean([row["memory"]["ratio"] for row in done]),
        peak=_mean([row["memory"]["peak_bytes"] for row in done]),
        relative=_mean([row["time"]["relative"] for row in done]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, as text; a row of which all cells have failed ends in a remark."""
    summaries = summarise(rows)
    metrics = {one.name for one in summaries if one.name}
    metric = metrics.pop() if len(metrics) == 1 else "metric"
    columns = ["model", "data", "policy", "seeds", "peak", "step time", metric, "stored"]
    found = []
    for one in summaries:
        names = [one.model, one.data, one.policy]
        if not one.seeds:
            found.append([*names, f"failed, {one.failed} of {one.failed}"])
            continue
        seeds = f"{one.seeds}" + (f" ({one.failed} failed)" if one.failed else "")
        found.append(
            [
                *names,
                seeds,
                "" if one.peak is None else f"{one.peak / 1e6:.1f} MB",
                "" if one.relative is None else f"{one.relative:.2f}×",
                metric_text(one),
                "" if one.ratio is None else f"{one.ratio:.1f}× smaller",
            ]
        )
    return columns, found


def metric_text(one: Summary) -> str:
    """
    >>> metric_text(Summary(model="", data="", policy="", seeds=2, failed=0, unit="%",
    ...                     metric=97.25, spread=0.5))
    '97.2 ± 0.5 %'
    """
    if one.metric is None:
        return ""
    digits = 1 if one.unit == "%" else 3
    spread = "" if one.spread is None else f" ± {one.spread:.{digits}f}"
    return f"{one.metric:.{digits}f}{spread} {one.unit}".rstrip()
