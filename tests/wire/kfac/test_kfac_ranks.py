"""On several ranks K-FAC does what one process does that has all their examples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kfac_ranks import joined, on_ranks
from ranks import run_on_ranks

from encke.errors import UnsupportedError
from encke.wire.kfac.placement import Placement

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each of two ranks saw: they are started once for all tests."""
    return run_on_ranks(on_ranks, [0.5, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["inverse", "eigen"])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_two_ranks_do_what_one_process_does_with_both_batches(
    found: list[dict[str, Any]], fraction: float, method: str
) -> None:
    first, second = (rank[f"{method} {fraction}"]["steps"] for rank in found)
    torch.testing.assert_close(first, joined(2, method))
    torch.testing.assert_close(second, first, rtol=0, atol=0)


@pytest.mark.slow
def test_a_smaller_fraction_holds_fewer_solutions(found: list[dict[str, Any]]) -> None:
    units = 8
    assert [rank["inverse 1.0"]["held"] for rank in found] == [units, units]
    assert sum(rank["inverse 0.5"]["held"] for rank in found) == units
    assert all(0 < rank["inverse 0.5"]["held"] < units for rank in found)


@pytest.mark.slow
def test_replicas_under_ddp_stay_equal_to_the_bit(found: list[dict[str, Any]]) -> None:
    first, second = (rank["ddp"] for rank in found)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_the_dearest_units_are_spread_first() -> None:
    costs = [1.0, 9.0, 2.0, 8.0, 7.0]
    everyone = Placement.of(costs, world=3, fraction=1.0)
    assert everyone.columns == ((0, 1, 2),)
    load = [
        sum(c for c, s in zip(costs, everyone.solver, strict=True) if s == r) for r in range(3)
    ]
    assert sorted(load) == [9.0, 9.0, 9.0]
    alone = Placement.of(costs, world=3, fraction=1 / 3)
    assert alone.columns == ((0,), (1,), (2,))
    assert alone.rows == ((0, 1, 2),)


def test_a_fraction_that_does_not_make_a_grid_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="1/4, 2/4, 4/4"):
        Placement.of([1.0], world=4, fraction=0.75)
