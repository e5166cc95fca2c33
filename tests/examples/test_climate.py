"""Errors of fields are those of the definition, and downscaling undoes what it can."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from downscaling import (
    FACTOR,
    REACH,
    RIDGE,
    Downscaling,
    Globe,
    coarsen,
    interpolate,
    neighbours,
)
from field_errors import area_weights, errors, extremes, quantile
from torch import Tensor


def fields(years: int = 3, rows: int = 8, columns: int = 16, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 280 + 10 * torch.randn(years, rows, columns, generator=generator)


def points(truth: Tensor) -> list[tuple[int, int, int]]:
    years, rows, columns = truth.shape
    return [(y, r, c) for y in range(years) for r in range(rows) for c in range(columns)]


def test_area_weights_are_the_share_of_the_sphere_between_latitudes() -> None:
    weights = area_weights(64)
    # The area up to a latitude is (1 + sin) / 2; edges of that area lie between the rows.
    rows = torch.from_numpy(np.polynomial.legendre.leggauss(64)[0])
    edges = 2 * weights.cumsum(0) - 1
    assert bool((rows[:-1] < edges[:-1]).all())
    assert bool((edges[:-1] < rows[1:]).all())
    assert float((weights * rows.square()).sum()) == pytest.approx(1 / 3)  # mean of sin²
    assert float(weights.sum()) == pytest.approx(1)
    assert torch.allclose(weights, weights.flip(0))


@pytest.mark.parametrize("marked", [False, True], ids=["everywhere", "where it is marked"])
def test_errors_are_weighted_point_by_point(marked: bool) -> None:
    truth, predicted, weights = fields(), fields(seed=1), area_weights(8)
    where = truth > 285 if marked else None
    total = squares = sizes = signed = 0.0
    for y, r, c in points(truth):
        if where is None or where[y, r, c]:
            error = float(predicted[y, r, c]) - float(truth[y, r, c])
            total += float(weights[r])
            squares += float(weights[r]) * error**2
            sizes += float(weights[r]) * abs(error)
            signed += float(weights[r]) * error
    found = errors(predicted, truth, weights=weights, where=where)
    assert found.rmse == pytest.approx(math.sqrt(squares / total))
    assert found.mae == pytest.approx(sizes / total)
    assert found.bias == pytest.approx(signed / total)


def test_errors_of_no_point_are_refused() -> None:
    nowhere = torch.zeros(3, 8, 16, dtype=torch.bool)
    with pytest.raises(ValueError, match="at least one"):
        errors(fields(), fields(), weights=area_weights(8), where=nowhere)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.99, 1.0])
def test_a_quantile_is_the_first_value_that_reaches_the_share(share: float) -> None:
    values, weights = fields(), area_weights(8)
    ranked = sorted((float(values[p]), float(weights[p[1]])) for p in points(values))
    total, reached, place = sum(weight for _, weight in ranked), ranked[0][1], 0
    while reached < share * total * (1 - 1e-9):
        place += 1
        reached += ranked[place][1]
    assert quantile(values, share, weights=weights) == ranked[place][0]


def test_extremes_mark_both_ends_of_that_share_of_the_area() -> None:
    values, weights = fields(40), area_weights(8)
    low, high = extremes(values, 0.05, weights=weights)
    area = weights[:, None].expand(values.shape)
    for mask in (low, high):
        assert float(area[mask].sum() / area.sum()) == pytest.approx(0.05, abs=0.002)
    assert values[low].max() < values[~low & ~high].min()
    assert values[high].min() > values[~low & ~high].max()


def test_coarse_points_are_means_by_area() -> None:
    fine, weights = fields(), area_weights(8)
    coarse = coarsen(fine)
    assert coarse.shape == (3, 8 // FACTOR, 16 // FACTOR)
    for y, r, c in points(coarse):
        total = area = 0.0
        for i in range(FACTOR):
            for j in range(FACTOR):
                weight = float(weights[FACTOR * r + i])
                total += weight * float(fine[y, FACTOR * r + i, FACTOR * c + j])
                area += weight
        assert float(coarse[y, r, c]) == pytest.approx(total / area, rel=1e-6)
    with pytest.raises(ValueError, match="multiples of 4"):
        coarsen(torch.zeros(1, 6, 8))


def test_interpolation_goes_around_the_globe() -> None:
    coarse = fields(2, 4, 8)
    turned = interpolate(coarse.roll(3, dims=-1))
    assert torch.allclose(turned, interpolate(coarse).roll(3 * FACTOR, dims=-1))
    assert torch.allclose(interpolate(torch.full((1, 2, 4), 7.0)), torch.full((1, 8, 16), 7.0))


def test_the_delta_method_is_exact_for_a_climate_that_does_not_change() -> None:
    every_year = fields(1).expand(5, -1, -1)
    place = Downscaling.learn(every_year)
    assert torch.allclose(place.delta(coarsen(every_year)), every_year, atol=1e-3)
    assert float(place.spread.max()) < 1e-3


def test_fields_come_back_from_the_target_of_the_network() -> None:
    seen = fields(6)
    place = Downscaling.learn(seen)
    restored = place.fields(place.target(seen), coarsen(seen))
    assert torch.allclose(restored, seen, atol=1e-3)
    assert place.inputs(coarsen(seen)).shape == (6, 4, 8, 16)
    assert float(place.target(seen).square().mean()) == pytest.approx(1, rel=1e-3)


def test_neighbours_go_around_the_globe_and_end_at_the_poles() -> None:
    coarse = fields(2, 4, 8)
    around, far = neighbours(coarse), REACH // 2
    for y, r, c in points(coarse):
        expected = [
            float(coarse[y, min(max(r + i, 0), 3), (c + j) % 8])
            for i in range(-far, far + 1)
            for j in range(-far, far + 1)
        ]
        assert around[y, r, c].tolist() == expected


def test_regression_solves_the_ridge_problem_of_every_point() -> None:
    seen = fields(9, 16, 24)
    place, coarse = Downscaling.learn(seen), coarsen(seen)
    around = neighbours(coarse - coarse.mean(0)).double()
    for r, c in [(0, 0), (5, 7), (15, 23)]:
        x = around[:, r // FACTOR, c // FACTOR]
        y = (seen - place.delta(coarse))[:, r, c].double()
        by_hand = torch.linalg.lstsq(
            torch.cat([x, math.sqrt(RIDGE) * torch.eye(REACH**2, dtype=torch.float64)]),
            torch.cat([y, torch.zeros(REACH**2, dtype=torch.float64)]),
        ).solution
        assert torch.allclose(place.coefficients[r, c].double(), by_hand, atol=1e-5)
        expected = place.delta(coarse)[:, r, c] + (x @ by_hand).float()
        assert torch.allclose(place.regression(coarse)[:, r, c], expected, atol=1e-3)


def test_a_network_on_the_globe_does_not_see_the_edge() -> None:
    torch.manual_seed(0)
    network = Globe(torch.nn.Conv2d(1, 3, 5, padding=2), outputs=3, shape=(8, 16), margin=4)
    x = torch.randn(1, 1, 8, 16)
    assert torch.allclose(network(x.roll(5, -1)), network(x).roll(5, -1), atol=1e-6)
