"""What a preconditioner is asked to do, checked before anything is hooked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from encke.errors import UnsupportedError

Fisher = Literal["sampled", "empirical"]
Method = Literal["eigen", "inverse"]
Reduction = Literal["mean", "sum"]
OnUncovered = Literal["warn", "raise", "ignore"]

#: A number, or a function of the step that gives it.
Schedule = float | Callable[[int], float]


def value_at(schedule: Schedule, step: int) -> float:
    """The number that a schedule has at a step."""
    return float(schedule(step) if callable(schedule) else schedule)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about K-FAC that is not the model.

    `damping` is λ in (F + λI)⁻¹, in units of the mean loss's curvature, so the batch size does
    not change what it means. `decay` is that of the running averages. Factors are renewed every
    `factor_interval` steps and solved every `inverse_interval`; before the first interval is
    over both happen at steps 0, 1, 2, 4, 8, … `kl_clip` limits lr²·g̃·g, `None` turns it off;
    `lr` is the optimizer's rate, or a function of the step. A side with more than
    `largest_factor` rows keeps only its diagonal.

    For the empirical Fisher, `reduction`, `terms_per_example` and `accumulation` say how the
    loss is formed: a mean over examples × terms, divided by `accumulation`.

    `factor_error` is how far compression may move a factor, relative to its damping;
    `worker_fraction` the share of ranks that precondition a layer (KAISA).
    """

    damping: Schedule = 1e-3
    decay: float = 0.95
    fisher: Fisher = "sampled"
    method: Method = "inverse"
    factor_interval: int = 10
    inverse_interval: int = 20
    kl_clip: float | None = 1e-3
    lr: Schedule = 0.1
    largest_factor: int = 8192
    reduction: Reduction = "mean"
    terms_per_example: int = 1
    accumulation: int = 1
    factor_error: float = 0.1
    worker_fraction: float = 1.0
    uncovered: OnUncovered = "warn"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("fisher", get_args(Fisher)),
            ("method", get_args(Method)),
            ("reduction", get_args(Reduction)),
            ("uncovered", get_args(OnUncovered)),
        ):
            if getattr(self, name) not in allowed:
                raise UnsupportedError(
                    f"KFAC: {name} is {getattr(self, name)!r}, allowed are {', '.join(allowed)}"
                )
        for name in (
            "factor_interval",
            "inverse_interval",
            "largest_factor",
            "terms_per_example",
            "accumulation",
        ):
            given = getattr(self, name)
            if not isinstance(given, int) or given < 1:
                raise UnsupportedError(
                    f"KFAC: {name} is {given!r}, it must be a whole number from 1"
                )
        self._number("damping", low=0.0, open_low=True, scheduled=True)
        self._number("lr", low=0.0, scheduled=True)
        self._number("kl_clip", low=0.0, open_low=True, optional=True)
        self._number("decay", low=0.0, high=1.0, open_high=True)
        self._number("factor_error", low=0.0, high=1.0)
        self._number("worker_fraction", low=0.0, high=1.0, open_low=True)

    def _number(
        self,
        name: str,
        *,
        low: float,
        high: float = math.inf,
        open_low: bool = False,
        open_high: bool = False,
        optional: bool = False,
        scheduled: bool = False,
    ) -> None:
        given = getattr(self, name)
        if (scheduled and callable(given)) or (optional and given is None):
            return
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not (
            number
            and (low < given if open_low else low <= given)
            and (given < high if open_high else given <= high)
        ):
            edges = f"{'above' if open_low else 'from'} {low:g}"
            if high < math.inf:
                edges += f" {'to below' if open_high else 'to'} {high:g}"
            raise UnsupportedError(
                f"KFAC: {name} is {given!r}, it must be a number {edges}"
                + (", or None to leave it out" if optional else "")
                + (", or a function of the step" if scheduled else "")
            )


def due(step: int, interval: int) -> bool:
    """Whether something that is done every `interval` steps is done at this one.

    Early steps are where curvature changes most, so they are not waited through:

    >>> [step for step in range(25) if due(step, 10)]
    [0, 1, 2, 4, 8, 10, 20]
    """
    return step % interval == 0 or (step < interval and step & (step - 1) == 0)
