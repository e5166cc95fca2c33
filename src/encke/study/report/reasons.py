"""Why a setting is recommended: what it was chosen among, and what the others are good for."""

from __future__ import annotations

from encke.study.report.comparison import Comparison
from encke.study.report.numbers import counted, difference, times
from encke.study.report.recommend import Verdict, contenders, relative_loss, verdicts

#: A saving below this is not offered as an alternative.
_WORTHWHILE = 1.25


def reasons(comparison: Comparison, best: Verdict) -> str:
    """Sentences that set the recommended policy beside the others."""

    def name(verdict: Verdict) -> str:
        return comparison.policies[verdict.policy].label

    found = verdicts(comparison)
    fit = contenders(found)
    others = [verdict for verdict in found if verdict.policy != best.policy]
    rivals = [verdict for verdict in fit if verdict.policy != best.policy]
    if not others:
        return "It is the only setting that was compared with plain."
    sentences = [
        f"Of {counted(len(found), 'setting')} beside plain, {len(fit)} "
        f"{'trains' if len(fit) == 1 else 'train'} as well as plain {_often(found, fit)}."
    ]
    if rivals:
        runner_up = max(rivals, key=lambda verdict: verdict.saving)
        least = "this one keeps the least; next comes"
        if runner_up.saving >= best.saving:  # tied with it, but slower
            least = "this one is the faster of two that keep about the least; the other is"
        sentences.append(
            f"Of those, {least} {name(runner_up)} with {times(runner_up.saving)} "
            f"less{_at_time(runner_up)}."
        )
    smaller = [
        v
        for v in others
        if v.saving > best.saving and v not in fit and len(v.groups) == len(best.groups)
    ]
    if smaller:
        smallest = max(smaller, key=lambda verdict: verdict.saving)
        where = ""
        if len(smallest.groups) > 1:
            bad = len(smallest.groups) - len(smallest.good)
            where = f" in {bad} of {len(smallest.groups)} comparisons"
        sentences.append(
            f"{name(smallest)} keeps less ({times(smallest.saving)}) but falls behind "
            f"plain{where}{_worst_of(comparison, smallest)}."
        )
    sentences += _own(comparison, best, others)
    faster = [
        v
        for v in rivals
        if v.time and best.time and v.time < best.time * 0.95 and v.saving > _WORTHWHILE
    ]
    if faster:
        fastest = min(faster, key=lambda verdict: verdict.time or 0)
        sentences.append(
            f"If time matters more: {name(fastest)} takes {times(fastest.time)} the step time "
            f"of plain and keeps {times(fastest.saving)} less."
        )
    untried = [v for v in others if len(v.groups) < len(best.groups)]
    if untried:
        sentences.append(
            f"{counted(len(untried), 'setting')} have results in fewer comparisons."
            if len(untried) > 1
            else f"{name(untried[0])} has results in fewer comparisons."
        )
    return " ".join(sentences)


def _often(found: list[Verdict], fit: list[Verdict]) -> str:
    """In how many comparisons contenders train as well as plain."""
    scenes = max(len(verdict.groups) for verdict in found)
    least = min(len(verdict.good) for verdict in fit)
    if least == scenes:
        return "everywhere" if scenes > 1 else "here"
    return f"in at least {least} of {scenes} comparisons"


def _own(comparison: Comparison, best: Verdict, others: list[Verdict]) -> list[str]:
    """Where another setting is recommended, how Encke's best one did."""
    own = [v for v in others if comparison.policies[v.policy].kind == "encke"]
    if not own or comparison.policies[best.policy].kind == "encke":
        return []
    nearest = max(own, key=lambda verdict: (len(verdict.good), verdict.saving))
    return [
        f"Of Encke's own settings, {comparison.policies[nearest.policy].label} does best: "
        f"{times(nearest.saving)} less{_at_time(nearest)}, as well as plain in "
        f"{len(nearest.good)} of {counted(len(nearest.groups), 'comparison')}."
    ]


def _at_time(verdict: Verdict) -> str:
    return "" if verdict.time is None else f" at {times(verdict.time)} the step time"


def _worst_of(comparison: Comparison, verdict: Verdict) -> str:
    worst = max(verdict.groups, key=lambda group: relative_loss(comparison, group))
    plain = comparison.plain_of(worst)
    if plain is None or plain.metric is None or worst.metric is None:
        return ""
    scene = comparison.scenes[worst.scene]
    change = difference(worst.metric.mean - plain.metric.mean, scene.metric.unit)
    if len(verdict.groups) == 1:
        return f" ({change} in {scene.metric.name})"
    return f" (at worst {change} in {scene.metric.name}, {scene.label})"
