"""A plan as a file: made once on a cluster, used by every job that has the same ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from encke.atomic import write_text
from encke.errors import UnsupportedError
from encke.wire.cost import Bucket, Coding, Workload
from encke.wire.link import Line, Link
from encke.wire.plan import Choice, Plan

_FORMAT = 1


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Everything that the plan was made from, its choice, and what was observed."""
    link, work = plan.link, plan.workload
    return {
        "format": _FORMAT,
        "chosen": list(plan.chosen.pair),
        "world": link.world,
        "link": {"exchange": _line(link.exchange), "reduce": _line(link.reduce)},
        "workload": {
            "seconds": work.seconds,
            "together": work.together,
            "alone": work.alone,
            "buckets": [[b.values, b.nbytes, b.ready] for b in work.buckets],
        },
        "codings": [
            [*choice.pair, one.encode, one.decode, one.size, one.again]
            for choice, one in plan.codings.items()
        ],
        "limit": plan.limit,
        "observed": [[*choice.pair, *seconds] for choice, seconds in plan.observed.items()],
    }


def plan_of_json(value: Any) -> Plan:
    """The plan that `plan_to_json` was given, with its choice."""
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise UnsupportedError(f"the plan has format {found!r}, this Encke reads {_FORMAT}")
    try:
        work = value["workload"]
        plan = Plan(
            link=Link(
                world=int(value["world"]),
                exchange=Line(**value["link"]["exchange"]),
                reduce=Line(**value["link"]["reduce"]),
            ),
            workload=Workload(
                seconds=float(work["seconds"]),
                together=float(work["together"]),
                alone=float(work.get("alone", 1.0)),
                buckets=[
                    Bucket(values=int(values), nbytes=int(nbytes), ready=float(ready))
                    for values, nbytes, ready in work["buckets"]
                ],
            ),
            codings={
                Choice(str(codec), float(tolerance)): Coding(
                    encode=float(encode), decode=float(decode), size=float(size), again=float(a)
                )
                for codec, tolerance, encode, decode, size, a in value["codings"]
            },
            limit=value["limit"],
            observed={
                Choice(str(codec), float(tolerance)): [float(one) for one in seconds]
                for codec, tolerance, *seconds in value["observed"]
            },
        )
        codec, tolerance = value["chosen"]
        chosen = Choice(str(codec), float(tolerance))
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedError(f"the plan is not one that Encke wrote: {error!r}") from None
    if chosen not in plan.choices():
        raise UnsupportedError(f"the plan's choice is {chosen}, of which it knows nothing")
    plan.chosen = chosen
    return plan


def write_plan(path: Path, plan: Plan) -> None:
    """The plan as JSON."""
    write_text(path, json.dumps(plan_to_json(plan), indent=1) + "\n")


def read_plan(path: Path) -> Plan:
    """What `write_plan` wrote."""
    try:
        return plan_of_json(json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UnsupportedError(f"{path} is not JSON: {error}") from None
    except UnsupportedError as error:
        raise UnsupportedError(f"{path}: {error}") from None


def _line(line: Line) -> dict[str, float]:
    return {"latency": line.latency, "bandwidth": line.bandwidth, "busy": line.busy}
