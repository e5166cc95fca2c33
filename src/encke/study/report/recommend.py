"""Which setting to use: the smallest memory among those that train as well as plain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, fsum, log
from typing import TypeVar

from encke.study.report.comparison import Comparison, Group, Metric, Span

_One = TypeVar("_One")

#: What may be lost where plain's seeds lie closer together than this: points of a percentage,
#: or a share of plain's own value for other metrics.
POINTS = 0.3
SHARE = 0.003
#: Settings whose memory differs by less are tied; the faster one wins.
TIE = 0.02
#: The share of comparisons in which a setting for all of them must train as well as plain.
#: Seeds are chance: over many comparisons even an exact method falls behind in some.
OFTEN = 0.9


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A policy over all scenes where plain training can be compared with it.

    groups  its groups in those scenes
    good    those of them that train as well as plain
    saving  geometric mean over scenes of plain bytes over stored bytes
    time    geometric mean of step time relative to plain, where it was measured
    """

    policy: int
    groups: tuple[Group, ...]
    good: tuple[Group, ...]
    saving: float
    time: float | None

    @property
    def always_good(self) -> bool:
        return len(self.good) == len(self.groups)


def allowance(plain: Span, metric: Metric) -> float:
    """How much worse than plain's mean a training may end: as much as plain's own seeds lie
    apart, and at least `POINTS` points of a percentage or `SHARE` of another metric.

    Of two lots of three seeds of one and the same method (normally distributed), the second
    falls that far behind in 7 % of cases; behind the worst seed of the first, in 18 %.

    >>> from encke.study.report.comparison import Metric, Span
    >>> accuracy = Metric(name="accuracy", unit="%", lower_is_better=False)
    >>> allowance(Span(mean=70.0, low=69.5, high=70.5, count=3), accuracy)
    1.0
    """
    least = POINTS if metric.unit == "%" else SHARE * abs(plain.mean)
    return max(plain.high - plain.low, least)


def loss(comparison: Comparison, group: Group) -> float | None:
    """By how much a group's mean metric is worse than plain's; None where it cannot be said."""
    plain = comparison.plain_of(group)
    if plain is None or plain.metric is None or group.metric is None:
        return None
    metric = comparison.scenes[group.scene].metric
    return -metric.gain(group.metric.mean, plain.metric.mean)


def trains_as_well(comparison: Comparison, group: Group) -> bool | None:
    """Whether a group ends as well as plain training does; None where it cannot be said."""
    lost = loss(comparison, group)
    plain = comparison.plain_of(group)
    if lost is None or plain is None or plain.metric is None:
        return None
    return lost <= allowance(plain.metric, comparison.scenes[group.scene].metric)


def relative_loss(comparison: Comparison, group: Group) -> float:
    """Losses of different metrics side by side: as shares of plain's value."""
    plain, lost = comparison.plain_of(group), loss(comparison, group)
    if lost is None or plain is None or plain.metric is None or plain.metric.mean == 0:
        return 0.0
    return lost / abs(plain.metric.mean)


def saving(group: Group) -> float | None:
    """Plain bytes over stored bytes, the mean of the seeds."""
    if group.ratio is not None and group.ratio.mean > 0:
        return group.ratio.mean
    if group.plain is None or group.stored is None or group.stored.mean <= 0:
        return None
    return group.plain.mean / group.stored.mean


def best_in(comparison: Comparison, scene: int) -> Group | None:
    """The group of a scene that keeps the least among those that train as well as plain."""
    fit = [
        group
        for group in comparison.within(scene)
        if comparison.policies[group.policy].kind != "plain"
        and trains_as_well(comparison, group)
        and (saving(group) or 0) > 1
    ]
    return _thriftiest(
        fit, lambda group: saving(group) or 0.0, lambda g: g.time.mean if g.time else None
    )


def verdicts(comparison: Comparison) -> list[Verdict]:
    """Every policy but plain, over the scenes where its memory and plain's metric are known."""
    found = []
    for place, policy in enumerate(comparison.policies):
        if policy.kind == "plain":
            continue
        groups = [
            group
            for group in comparison.groups
            if group.policy == place
            and trains_as_well(comparison, group) is not None
            and saving(group) is not None
        ]
        if groups:
            savings = [value for group in groups if (value := saving(group)) is not None]
            times = [group.time.mean for group in groups if group.time and group.time.mean > 0]
            found.append(
                Verdict(
                    policy=place,
                    groups=tuple(groups),
                    good=tuple(g for g in groups if trains_as_well(comparison, g)),
                    saving=geometric_mean(savings),
                    time=geometric_mean(times) if times else None,
                )
            )
    return found


def contenders(found: list[Verdict]) -> list[Verdict]:
    """Those that save something and train as well as plain in nine scenes of ten or, where none
    does, in the most scenes.

    Counted against all scenes: a policy that was tried in one and held there has shown less
    than one that held in eleven of twelve, and its saving is one of other networks.
    """
    scenes = max((len(verdict.groups) for verdict in found), default=0)
    fit = [verdict for verdict in found if verdict.good and verdict.saving > 1]
    most = max((len(verdict.good) for verdict in fit), default=0)
    return [verdict for verdict in fit if len(verdict.good) >= min(OFTEN * scenes, most)]


def best_overall(comparison: Comparison) -> Verdict | None:
    """The policy for all scenes: the contender that keeps the least, None without any."""
    return _thriftiest(
        contenders(verdicts(comparison)),
        lambda verdict: verdict.saving,
        lambda verdict: verdict.time,
    )


def front(
    comparison: Comparison, scene: int, memory: Callable[[Group], Span | None]
) -> set[int]:
    """Policies of a scene that no other one beats in both metric and memory."""
    metric = comparison.scenes[scene].metric
    points = [
        (group.policy, metric.gain(group.metric.mean, 0.0), held.mean)
        for group in comparison.within(scene)
        if group.metric is not None and (held := memory(group)) is not None
    ]
    return {
        policy
        for policy, gain, held in points
        if not any(
            other_gain >= gain
            and other_held <= held
            and (other_gain > gain or other_held < held)
            for _, other_gain, other_held in points
        )
    }


def geometric_mean(values: list[float]) -> float:
    """
    >>> geometric_mean([2.0, 8.0])
    4.0
    """
    return exp(fsum(log(value) for value in values) / len(values))


def _thriftiest(
    fit: list[_One], saved: Callable[[_One], float], time: Callable[[_One], float | None]
) -> _One | None:
    if not fit:
        return None
    most = max(saved(one) for one in fit)
    tied = [one for one in fit if saved(one) >= most * (1 - TIE)]
    return min(tied, key=lambda one: (_or_last(time(one)), -saved(one)))


def _or_last(time: float | None) -> float:
    return float("inf") if time is None else time
