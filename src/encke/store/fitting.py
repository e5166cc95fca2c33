"""From a loss budget to codes: share it out, round, measure, tighten.

The slope of the loss decides a single file: at a small budget Σ g·e scatters by more than the
budget. Weights are therefore shifted against the slope by λ g/h before they are rounded, with
λ such that Σ g·e of what comes out is zero.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from encke.bound.allocate import water_fill
from encke.ops import quantiser
from encke.store import logarithm
from encke.store.blobs import LARGEST_CODE
from encke.store.delta import Base, residual_error, worth_it
from encke.store.feedback import rounded
from encke.store.rules import (
    Exact,
    Lattice,
    Logarithm,
    Pruned,
    Rule,
    lattice_values,
    wide_dtype,
)
from encke.store.subjects import Subject

log = logging.getLogger("encke")
_ATTEMPTS = 8
_SHIFTS = 3
_CLOSE = 0.85  # of the budget: nearer is not worth another attempt


@dataclass(kw_only=True)
class Coded:
    """A subject with its codes.

    rule     how the file keeps it
    decoded  what the file will give
    error    decoded − value, in float32
    bound    the error that was allocated to it
    """

    subject: Subject
    rule: Rule
    decoded: Tensor
    error: Tensor
    bound: float


@dataclass(kw_only=True)
class Fit:
    """Codes of all subjects, and what they do to the loss.

    predicted  second-order rise of the codes that were chosen
    measured   rise on the calibration data, or None if it was not measured
    """

    coded: list[Coded]
    predicted: float
    slope: float
    measured: float | None
    attempts: int


def fit(
    subjects: Sequence[Subject],
    budget: float,
    measure: Callable[[], float] | None,
    *,
    base: Base | None = None,
) -> Fit:
    """Codes whose loss is at most `budget` higher, by measurement where that is possible.

    measure  the loss with the subjects' values as they are now, less the true one's
    """
    allowed, best = budget, None
    for number in range(1, _ATTEMPTS + 1):
        found = attempt(subjects, allowed, base)
        found.attempts = number
        if measure is None:
            return found
        with in_place(found.coded):
            found.measured = measure()
        if not math.isfinite(found.measured):
            found.measured = math.inf
        if found.measured <= budget and (best is None or allowed > best[0]):
            best = (allowed, found)
        # What counts is the larger of both: a lucky slope is no licence to go on.
        seen = max(found.measured, 0.7 * found.predicted)
        if _CLOSE * budget <= seen <= budget or number == _ATTEMPTS:
            break
        allowed *= min(3.0, max(0.1, 0.95 * budget / max(seen, 1e-300)))
        if best is not None and abs(allowed / best[0] - 1.0) < 0.03:
            break
    if best is None:
        return _tightened(subjects, allowed, budget, measure, base)
    return best[1]


def _tightened(
    subjects: Sequence[Subject],
    allowed: float,
    budget: float,
    measure: Callable[[], float] | None,
    base: Base | None,
) -> Fit:
    """Tighter and tighter until the promise holds; exact in the limit."""
    assert measure is not None
    for number in range(_ATTEMPTS + 1, _ATTEMPTS + 12):
        allowed *= 0.25
        found = attempt(subjects, allowed, base)
        with in_place(found.coded):
            found.measured = measure()
        found.attempts = number
        if found.measured <= budget:
            return found
    log.warning("the loss cannot be kept within its budget; weights are kept exactly")
    return Fit(coded=[], predicted=0.0, slope=0.0, measured=0.0, attempts=_ATTEMPTS + 12)


def attempt(subjects: Sequence[Subject], budget: float, base: Base | None) -> Fit:
    """Codes of all subjects for one budget of the second-order rise."""
    bounds = water_fill({s.name: s.demand() for s in subjects}, variance=budget)
    shift, coded = 0.0, [encode(s, bounds[s.name], 0.0, base) for s in subjects]
    curved = sum(
        float((s.slope.double().square()).sum()) / s.curvature
        for s in subjects
        if s.slope is not None and s.curvature > 0
    )
    slope = _slope(coded)
    for _ in range(_SHIFTS if curved > 0 else 0):
        if abs(slope) < 0.02 * budget:
            break
        shift += slope / curved
        retried = [encode(s, bounds[s.name], shift, base) for s in subjects]
        if abs(_slope(retried)) >= abs(slope):
            break
        coded, slope = retried, _slope(retried)
    predicted = sum(c.subject.rise(c.error) for c in coded)
    return Fit(coded=coded, predicted=predicted, slope=slope, measured=None, attempts=1)


def _slope(coded: Sequence[Coded]) -> float:
    """Σ g·e: what the loss changes by in first order."""
    return sum(
        float((c.subject.slope.double() * c.error.double()).sum())
        for c in coded
        if c.subject.slope is not None
    )


def encode(subject: Subject, bound: float, shift: float, base: Base | None = None) -> Coded:
    """Codes of one subject within its bound, or within twice that with feedback."""
    value = subject.value.detach().cpu()
    if subject.variance:
        return _variance(subject, value, bound)
    if subject.pruned:
        return _pruned(subject, value, bound)
    wide = wide_dtype(value.dtype)
    target = value.to(wide)
    moved = 0.0
    if subject.slope is not None and subject.curvature > 0 and shift:
        move = (-shift / subject.curvature) * subject.slope.to(wide)
        target = target + move.clamp_(-0.5 * bound, 0.5 * bound)
        moved = float(move.abs().max())  # feedback may use what is left of twice the bound
    old = None if base is None else base.value(f"model/{subject.name}", value)
    error = bound
    if old is not None:
        inner = residual_error(value, old, bound)
        q = quantiser.linear(max(inner, 0.0), wide)
        if q.step0 > 0 and worth_it(value, old, q.step0):
            target, error = target - old.to(wide), inner
        else:
            old = None
    q = quantiser.linear(error, value.dtype if old is None else wide)
    if q.step0 == 0.0 or not bool((target.abs() <= (LARGEST_CODE - 8) * q.step0).all()):
        return _exact(subject, value)
    slack = 1.0 if not subject.corrections and shift == 0.0 else 2.0
    codes = _codes(subject, target.float(), q.step0, error - moved)
    decoded = lattice_values(codes, q.step0, wide)
    decoded = (decoded if old is None else decoded + old.to(wide)).to(value.dtype)
    difference = decoded.double() - value.double()
    far = difference.abs() > slack * bound
    if bool(far.any()):  # the last unit of a 16-bit dtype, or a row that was pushed too far
        return _exact(subject, value)
    rule = Lattice(codes=codes, step=q.step0, error=slack * bound, on_base=old is not None)
    return Coded(
        subject=subject, rule=rule, decoded=decoded, error=difference.float(), bound=bound
    )


def _codes(subject: Subject, target: Tensor, step: float, error: float) -> Tensor:
    if not subject.corrections:
        return torch.round(target / step)
    rows = subject.as_rows(target)
    groups = rows.chunk(len(subject.corrections))
    parts = [
        rounded(part, step, 0.999 * error, chosen)
        for part, chosen in zip(groups, subject.corrections, strict=True)
    ]
    return subject.from_rows(torch.cat(parts))


def _variance(subject: Subject, value: Tensor, bound: float) -> Coded:
    """A running variance, within a factor: errors are of its logarithm."""
    factor = 2.0**bound
    if not logarithm.takes(value, factor):
        return _exact(subject, value)
    decoded = logarithm.rounded(value, factor)
    live = value > 0
    error = torch.where(live, torch.log2(decoded.double() / value.double()), 0.0)
    return Coded(
        subject=subject,
        rule=Logarithm(factor=factor, factored=False),
        decoded=decoded,
        error=error.float(),
        bound=bound,
    )


def _pruned(subject: Subject, value: Tensor, bound: float) -> Coded:
    """A matrix of mostly zeros: its other values, rounded to the nearest."""
    q = quantiser.linear(bound, value.dtype)
    kept = value[value != 0]
    if q.step0 == 0.0 or not bool((kept.abs() <= (LARGEST_CODE - 8) * q.step0).all()):
        return _exact(subject, value)
    codes = torch.round(kept.to(wide_dtype(value.dtype)) / q.step0).float()
    decoded = torch.zeros_like(value)
    decoded[value != 0] = (codes.double() * q.step0).to(value.dtype)
    return Coded(
        subject=subject,
        rule=Pruned(codes=codes, step=q.step0, error=bound),
        decoded=decoded,
        error=(decoded.double() - value.double()).float(),
        bound=bound,
    )


def _exact(subject: Subject, value: Tensor) -> Coded:
    return Coded(
        subject=subject,
        rule=Exact(),
        decoded=value,
        error=torch.zeros(value.shape),
        bound=0.0,
    )


@contextmanager
def in_place(coded: Sequence[Coded]) -> Iterator[None]:
    """The model with decoded values, for as long as its loss is measured."""
    kept = [c.subject.value.clone() for c in coded]
    try:
        with torch.no_grad():
            for c in coded:
                c.subject.value.copy_(c.decoded)
        yield
    finally:
        with torch.no_grad():
            for c, value in zip(coded, kept, strict=True):
                c.subject.value.copy_(value)
