"""A bound says what it means for a tensor, and refuses to mean nothing."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encke.bound import (
    Absolute,
    Bound,
    FixedRate,
    Lossless,
    PointwiseRelative,
    Promise,
    RangeRelative,
    RmsRelative,
    resolve,
)
from encke.bound.kinds import KINDS, from_code
from encke.errors import BoundError

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

#: Every kind with a number: the name of its field, and the least and the largest allowed.
RANGES: dict[type[Bound], tuple[str, float, float]] = {
    Absolute: ("error", 0.0, 1.7976931348623157e308),
    RangeRelative: ("ratio", 0.0, 1.0),
    RmsRelative: ("ratio", 0.0, 1e6),
    PointwiseRelative: ("ratio", 0.0, 0.5),
    FixedRate: ("bits", 0.25, 64.0),
}


def outside() -> list[tuple[type[Bound], object]]:
    cases: list[tuple[type[Bound], object]] = []
    for kind, (_, low, high) in RANGES.items():
        cases += [(kind, number) for number in (math.nan, math.inf, -math.inf, -1, -1e-300)]
        cases += [(kind, math.nextafter(high, math.inf)), (kind, math.nextafter(low, -1))]
        cases += [(kind, thing) for thing in (None, "0.1", True, [0.1], 10**400)]
    return cases


@pytest.mark.parametrize(
    ("kind", "number"), outside(), ids=lambda v: getattr(v, "__name__", repr(v)[:24])
)
def test_numbers_outside_the_range_are_refused_with_value_range_and_remedy(
    kind: type[Bound], number: object
) -> None:
    field, low, high = RANGES[kind]
    with pytest.raises(BoundError) as caught:
        kind(number)  # type: ignore[call-arg]
    message = str(caught.value)
    for part in (f"{kind.__name__}: {field} is", f"allowed is {low:g} to {high:g}; "):
        assert part in message
    assert repr(number) in message
    assert len(message.partition("; ")[2]) > 10  # what to do instead


@pytest.mark.parametrize("kind", RANGES)
def test_both_ends_of_the_range_are_taken(kind: type[Bound]) -> None:
    _, low, high = RANGES[kind]
    for number in (low, high, (low + high) / 2, 1 if kind is FixedRate else 0):
        assert kind(number).number == number  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", RANGES)
def test_numbers_of_numpy_are_numbers(kind: type[Bound]) -> None:
    for number in (np.float64(0.5), np.float32(0.5)):
        bound = kind(number)  # type: ignore[call-arg]
        assert bound.number == 0.5
        assert type(bound.number) is float


def test_every_kind_has_its_own_code_and_name() -> None:
    assert sorted(KINDS) == [1, 2, 3, 4, 5, 6]
    assert len({kind.kind for kind in KINDS.values()}) == len(KINDS)
    assert set(RANGES) | {Lossless} == set(KINDS.values())


@pytest.mark.parametrize("bound", [*(kind(0.375) for kind in RANGES), Lossless()], ids=repr)
def test_code_number_and_representation_give_the_bound_again(bound: Bound) -> None:
    assert from_code(bound.code, bound.number) == bound
    assert eval(repr(bound)) == bound
    assert len({bound, from_code(bound.code, bound.number)}) == 1


@pytest.mark.parametrize("code", [0, 7, 255, -1])
def test_a_code_that_stands_for_nothing_is_refused(code: int) -> None:
    with pytest.raises(BoundError, match=rf"{code}, allowed are \[1, 2, 3, 4, 5, 6\]"):
        from_code(code, 0.1)


@pytest.mark.parametrize("kind", RANGES)
def test_a_bound_does_not_change(kind: type[Bound]) -> None:
    bound = kind(0.5)  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(bound, RANGES[kind][0], 0.25)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_each_kind_means_what_it_says(dtype: torch.dtype) -> None:
    x = torch.tensor([-1.0, 3.0, 0.5, 0.0], dtype=dtype)
    assert resolve(Absolute(0.25), x) == Promise(error=0.25)
    assert resolve(RangeRelative(0.25), x) == Promise(error=1.0)
    assert resolve(RmsRelative(2.0), x) == Promise(error=math.sqrt(1 + 9 + 0.25))
    assert resolve(PointwiseRelative(0.25), x) == Promise(pointwise=0.25)
    assert resolve(FixedRate(4), x) == Promise(rate=4.0)
    assert resolve(Lossless(), x) == Promise(error=0.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values_that_are_not_finite_do_not_count(dtype: torch.dtype) -> None:
    x = torch.tensor([2.0, math.nan, -6.0, math.inf, -math.inf], dtype=dtype)
    assert resolve(RangeRelative(0.5), x) == Promise(error=4.0)
    assert resolve(RmsRelative(0.5), x).error == pytest.approx(0.5 * math.sqrt(20), rel=1e-15)


@pytest.mark.parametrize("bound", [RangeRelative(0.5), RmsRelative(0.5)])
@pytest.mark.parametrize(
    "x", [torch.zeros(0), torch.zeros(5), torch.full((3,), math.nan), torch.tensor(-math.inf)]
)
def test_without_a_range_everything_is_kept_exactly(bound: Bound, x: torch.Tensor) -> None:
    assert resolve(bound, x).exact


def test_a_constant_has_no_range_but_a_root_mean_square() -> None:
    x = torch.full((7,), -4.0)
    assert resolve(RangeRelative(0.5), x).exact
    assert resolve(RmsRelative(0.5), x) == Promise(error=2.0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int64])
@pytest.mark.parametrize(
    "bound", [Absolute(3.0), RangeRelative(0.5), RmsRelative(0.5), PointwiseRelative(0.5)]
)
def test_integers_and_truth_values_are_always_kept_exactly(
    bound: Bound, dtype: torch.dtype
) -> None:
    assert resolve(bound, torch.ones(5, dtype=dtype)).exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_bound_of_no_kind_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(BoundError, match=r"Bound\(\).*Absolute"):
        resolve(Bound(), torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_widest_range_of_a_dtype_does_not_overflow(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([-largest, largest], dtype=dtype)
    for bound in (RangeRelative(0.25), RmsRelative(0.25)):
        error = resolve(bound, x).error
        assert error is not None
        assert error <= 0.5 * largest
        assert error >= 0.25 * largest * (1 - 1e-12)


def test_squares_beyond_the_largest_float_do_not_make_a_bound_infinite() -> None:
    x = torch.tensor([3e200, -4e200], dtype=torch.float64)
    error = resolve(RmsRelative(0.5), x).error
    assert error == pytest.approx(0.5 * math.sqrt(12.5) * 1e200, rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=30),
    st.floats(0, 1),
)
def test_range_and_root_mean_square_are_those_of_the_finite_values(
    numbers: list[float], ratio: float
) -> None:
    finite = [v for v in numbers if math.isfinite(v)]
    x = torch.tensor(numbers, dtype=torch.float32)
    extent = max(finite) - min(finite) if finite else 0.0
    assert resolve(RangeRelative(ratio), x).error == ratio * extent
    rms = math.sqrt(math.fsum(v * v for v in finite) / len(finite)) if finite else 0.0
    assert resolve(RmsRelative(ratio), x).error == pytest.approx(ratio * rms, rel=1e-12)
