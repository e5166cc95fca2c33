"""Cells that differ only in their seed, put together; what is compared with what.

A *scene* is a network on its data, a *group* one policy in one scene with all its seeds. The
page compares groups within a scene, never across scenes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum

from encke.study.report.fields import Row, field, is_done, number, options, text

#: Kinds in the order in which the page names them.
KINDS = (
    "plain",
    "encke",
    "fixed",
    "comet",
    "group",
    "zfp",
    "bf16",
    "checkpoint",
    "save_on_cpu",
)
_SHARES = ("", "1", "share", "fraction")


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A figure over the seeds that have it."""

    mean: float
    low: float
    high: float
    count: int

    @staticmethod
    def over(values: Iterable[float | None]) -> Span | None:
        """None where no value is known.

        >>> Span.over([1.0, None, 3.0])
        Span(mean=2.0, low=1.0, high=3.0, count=2)
        """
        known = [value for value in values if value is not None]
        if not known:
            return None
        low, high = min(known), max(known)
        # The mean of equal numbers is that number, whatever the division rounds to.
        mean = min(max(fsum(known) / len(known), low), high)
        return Span(mean=mean, low=low, high=high, count=len(known))


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """What a scene's trainings are judged by. A share is shown in percent: `factor` is 100."""

    name: str
    unit: str
    lower_is_better: bool
    factor: float = 1.0

    def gain(self, value: float, over: float) -> float:
        """By how much `value` is better than `over`; negative if it is worse."""
        return over - value if self.lower_is_better else value - over


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One network on one data set."""

    model: str
    data: str
    metric: Metric

    @property
    def label(self) -> str:
        return f"{self.model} on {self.data}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """One way to keep activations; `variant` counts those of the same kind."""

    label: str
    kind: str
    variant: int

    @property
    def is_peer(self) -> bool:
        """Whether it is what one would use instead of Encke's own controller."""
        return self.kind not in ("plain", "encke")


@dataclass(frozen=True, kw_only=True)
class Group:
    """A policy in a scene: indices of its rows, and its figures over seeds."""

    scene: int
    policy: int
    done: tuple[int, ...]
    failed: tuple[int, ...]
    metric: Span | None
    plain: Span | None
    stored: Span | None
    ratio: Span | None
    peak: Span | None
    time: Span | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All of a study, ordered for the page."""

    rows: list[Row]
    scenes: list[Scene]
    policies: list[Policy]
    groups: list[Group]

    @cached_property
    def _plain(self) -> dict[int, Group]:
        return {
            group.scene: group
            for group in self.groups
            if self.policies[group.policy].kind == "plain"
        }

    def plain_of(self, group: Group) -> Group | None:
        """The plain training of the same scene."""
        return self._plain.get(group.scene)

    def within(self, scene: int) -> list[Group]:
        return [group for group in self.groups if group.scene == scene]

    def label(self, group: Group) -> str:
        return self.policies[group.policy].label


def compare(rows: Sequence[Row]) -> Comparison:
    """Group rows by scene and policy; the order of scenes is that of the rows.

    >>> cell = {"model": "mlp", "data": "digits", "policy": "plain"}
    >>> both = compare([cell | {"seed": 0}, cell | {"seed": 1}])
    >>> [scene.label for scene in both.scenes], len(both.groups)
    (['mlp on digits'], 1)
    """
    models, datas = (_named(rows, key, f"{key}_options") for key in ("model", "data"))
    labels = _named(rows, "policy", "policy_options")
    kinds = [text(row, "policy_kind") for row in rows]

    places: dict[tuple[str, str], list[int]] = {}
    settings: dict[tuple[str, str], None] = {}
    for i in range(len(rows)):
        places.setdefault((models[i], datas[i]), []).append(i)
        settings.setdefault((kinds[i], labels[i]))

    policies: list[Policy] = []
    for kind, label in sorted(settings, key=lambda setting: _rank(setting[0])):
        variant = sum(policy.kind == kind for policy in policies)
        policies.append(Policy(label=label, kind=kind, variant=variant))

    scenes, groups = [], []
    for scene, ((model, data), members) in enumerate(places.items()):
        metric = _metric([rows[i] for i in members])
        scenes.append(Scene(model=model, data=data, metric=metric))
        for place, policy in enumerate(policies):
            own = [i for i in members if (kinds[i], labels[i]) == (policy.kind, policy.label)]
            if own:
                groups.append(_group(rows, own, scene=scene, policy=place, metric=metric))
    return Comparison(rows=list(rows), scenes=scenes, policies=policies, groups=groups)


def _rank(kind: str) -> int:
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def _named(rows: Sequence[Row], key: str, options_key: str) -> list[str]:
    """Each row's name for something, with its options where one name stands for several."""
    names = [text(row, key, default="(unnamed)") for row in rows]
    given = [options(row, options_key) for row in rows]
    variants: dict[str, set[str]] = {}
    for name, option in zip(names, given, strict=True):
        variants.setdefault(name, set()).add(option)
    return [
        f"{name} ({option or 'as it is'})" if len(variants[name]) > 1 else name
        for name, option in zip(names, given, strict=True)
    ]


def _metric(rows: list[Row]) -> Metric:
    first = next((row for row in rows if field(row, "metric", "name") is not None), {})
    name, unit = text(first, "metric", "name", default="metric"), text(first, "metric", "unit")
    finals = [value for row in rows if (value := number(row, "metric", "final")) is not None]
    share = (
        unit in _SHARES and "acc" in name.lower() and all(0 <= value <= 1 for value in finals)
    )
    return Metric(
        name=name,
        unit="%" if share else unit,
        lower_is_better=field(first, "metric", "better") == "lower",
        factor=100.0 if share else 1.0,
    )


def _group(
    rows: Sequence[Row], own: list[int], *, scene: int, policy: int, metric: Metric
) -> Group:
    done = tuple(i for i in own if is_done(rows[i]))

    def over(*path: str, change: Callable[[float], float] = lambda value: value) -> Span | None:
        values = [number(rows[i], *path) for i in done]
        return Span.over(change(value) for value in values if value is not None)

    return Group(
        scene=scene,
        policy=policy,
        done=done,
        failed=tuple(i for i in own if i not in done),
        metric=over("metric", "final", change=lambda value: value * metric.factor),
        plain=over("memory", "plain_bytes"),
        stored=over("memory", "stored_bytes"),
        ratio=over("memory", "ratio"),
        peak=over("memory", "peak_bytes"),
        time=over("time", "relative"),
    )
