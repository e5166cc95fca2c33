"""The beginning of the page: what was saved at what cost, in words and a few large figures."""

from __future__ import annotations

from encke.study.report.comparison import Comparison, Group
from encke.study.report.markup import Markup, element, joined
from encke.study.report.numbers import (
    NONE,
    counted,
    difference,
    listed,
    measure,
    size,
    times,
    unbroken,
)
from encke.study.report.reasons import reasons
from encke.study.report.recommend import (
    Verdict,
    geometric_mean,
    loss,
    relative_loss,
    saving,
    verdicts,
)

_NO_PLAIN = (
    "Without a finished plain training of the same network and data nothing can be said about "
    "what that costs: add the policy “plain” to the study."
)
_AS_WELL = (
    "A setting trains as well as plain if the mean of its seeds ends no further behind plain's "
    "mean than plain's own seeds lie apart, or at most 0.3 points (for metrics that are not "
    "percentages, 0.3 % of plain's value) behind."
)
_CHOICE = (
    "the one that keeps the fewest bytes for backward is recommended; of two within 2 % of "
    "each other, the faster."
)


def headline(comparison: Comparison, best: Verdict | None) -> str:
    """The answer in one line."""
    if not any(group.done for group in comparison.groups):
        return "No cell of this study has finished"
    if best is None:
        if not any(comparison.plain_of(group) for group in comparison.groups):
            return "What was kept, without plain training to compare with"
        return "No setting saved memory and trained as well as plain"
    where = (
        "" if best.always_good else f" in {len(best.good)} of {len(best.groups)} comparisons"
    )
    return (
        f"{times(best.saving)} less memory for backward, and the training ends as well as "
        f"plain{where}"
    )


def answer(comparison: Comparison, best: Verdict | None) -> Markup:
    """Sentences and large figures; everything in them follows from the rows."""
    if best is None:
        return _without_answer(comparison)
    label = comparison.policies[best.policy].label
    return joined(
        [
            element(
                "p",
                "The setting to use: ",
                element("strong", label),
                f". {_scope(comparison, best)}{_chance(best)}",
                class_="lead",
            ),
            element("dl", *_figures(comparison, best), class_="figures"),
            element("p", element("b", "Why this one. "), unbroken(reasons(comparison, best))),
            element("p", unbroken(_rule(comparison)), class_="note"),
        ]
    )


def _rule(comparison: Comparison) -> str:
    often = " in nine comparisons of ten" if len(comparison.scenes) > 1 else ""
    return f"{_AS_WELL} Of the settings that do so{often}, {_CHOICE}"


def _scope(comparison: Comparison, best: Verdict) -> str:
    if len(best.groups) == 1:
        scene = comparison.scenes[best.groups[0].scene]
        return f"Measured with {scene.label}, {_seeds(best.groups)}."
    held = "in all of them" if best.always_good else f"in {len(best.good)} of them"
    return (
        f"Measured in {len(best.groups)} comparisons of a network on its data "
        f"({_seeds(best.groups)}), it trained as well as plain {held}."
    )


def _chance(best: Verdict) -> str:
    if max(len(group.done) for group in best.groups) > 1:
        return ""
    return " One seed cannot tell chance from effect: run more before relying on it."


def _seeds(groups: tuple[Group, ...]) -> str:
    counts = {len(group.done) for group in groups}
    if len(counts) == 1:
        return counted(counts.pop(), "seed") + (" each" if len(groups) > 1 else "")
    return f"{min(counts)} to {max(counts)} seeds each"


def _figures(comparison: Comparison, best: Verdict) -> list[Markup]:
    groups = best.groups
    savings = [value for group in groups if (value := saving(group)) is not None]
    if len(groups) == 1 and groups[0].plain and groups[0].stored:
        kept = f"{size(groups[0].plain.mean)} become {size(groups[0].stored.mean)}"
    else:
        kept = f"geometric mean; {times(min(savings))} to {times(max(savings))}"
    figures = [_peak(comparison, groups)]
    steps = [group.time.mean for group in groups if group.time]
    if best.time is None:
        figures.append(_figure(NONE, "step time of plain", "not measured"))
    else:
        spread = f"geometric mean; {times(min(steps))} to {times(max(steps))}"
        figures.append(
            _figure(
                times(best.time),
                "the step time of plain",
                spread if len(steps) > 1 else "median of interleaved steps",
            )
        )
    figures.append(_quality(comparison, best))
    figures.append(_figure(times(best.saving), "less kept for backward", kept))
    return figures


def _quality(comparison: Comparison, best: Verdict) -> Markup:
    worst = max(best.groups, key=lambda group: relative_loss(comparison, group))
    scene, plain = comparison.scenes[worst.scene], comparison.plain_of(worst)
    lost = loss(comparison, worst)
    if lost is None or plain is None or plain.metric is None or worst.metric is None:
        return _figure(NONE, "against plain", "not measured")
    unit = scene.metric.unit
    change = difference(worst.metric.mean - plain.metric.mean, unit)
    both = (
        f"{measure(worst.metric.mean, unit)} against plain's {measure(plain.metric.mean, unit)}"
    )
    if len(best.groups) == 1:
        value, _, points = change.partition(" points")
        of = "points of" if unit == "%" else "in"
        return _figure(value + points, f"{of} {scene.metric.name}", both)
    return _figure(
        f"{len(best.good)} of {len(best.groups)}",
        "train as well as plain",
        f"largest loss: {scene.label}, {change} in {scene.metric.name}",
    )


def _peak(comparison: Comparison, groups: tuple[Group, ...]) -> Markup:
    pairs = [
        (plain.peak.mean, group.peak.mean)
        for group in groups
        if (plain := comparison.plain_of(group)) and plain.peak and group.peak
    ]
    pairs = [(before, after) for before, after in pairs if before > 0 and after > 0]
    if not pairs:
        return _figure(NONE, "lower peak of the training", "not measured")
    whole = geometric_mean([before / after for before, after in pairs])
    title = f"{'lower' if whole >= 1 else 'higher'} peak of the training"
    if len(pairs) == 1:
        note = f"{size(pairs[0][0])} become {size(pairs[0][1])}, every step included"
    else:
        factors = [before / after if whole >= 1 else after / before for before, after in pairs]
        reach = f"{times(min(factors))} to {times(max(factors))}"
        note = f"geometric mean; {reach}; every step included"
    return _figure(times(max(whole, 1 / whole)), title, note)


def _figure(value: str, title: str, note: str) -> Markup:
    return element(
        "div",
        element("dt", title),
        element("dd", value, class_="value"),
        element("dd", unbroken(note), class_="sub"),
    )


def _without_answer(comparison: Comparison) -> Markup:
    if not any(group.done for group in comparison.groups):
        failed = sum(len(group.failed) for group in comparison.groups)
        said = f"{counted(failed, 'cell')} failed; their errors are below." if failed else ""
        return element("p", said or "There are no results yet.", class_="lead")
    found = verdicts(comparison)
    if found:
        return joined(
            [
                element(
                    "p",
                    "Every setting that kept less than plain training ended worse than its "
                    "seeds let expect. Try a smaller tolerance, or more seeds.",
                    class_="lead",
                ),
                element("p", unbroken(_rule(comparison)), class_="note"),
            ]
        )
    return element("p", _kept(comparison), _NO_PLAIN, class_="lead")


def _kept(comparison: Comparison) -> str:
    """What each policy saved against what autograd would have held, the largest first."""
    savings: dict[str, list[float]] = {}
    for group in comparison.groups:
        saved = saving(group)
        if saved is not None and saved > 1:
            savings.setdefault(comparison.label(group), []).append(saved)
    means = {label: geometric_mean(values) for label, values in savings.items()}
    first = sorted(means, key=lambda label: -means[label])[:4]
    if not first:
        return ""
    said = listed([f"{label} {times(means[label])}" for label in first])
    return f"Less kept for backward than autograd would hold: {said}. "
