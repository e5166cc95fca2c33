"""Promises that hold between ranks: each test runs a few gloo processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_on_ranks
from worlds import (
    dying,
    letters,
    means,
    merged_state,
    moves,
    noise,
    one_after_another,
    resumed_elsewhere,
    sharded,
    trainings,
    tuned,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two() -> list[list[Any]]:
    """Two ranks: trainings, FSDP2, the tuner, and means with slots of one size."""
    jobs = [(trainings, 100), (sharded,), (tuned,), (means, "fixed", 16)]
    return run_on_ranks(one_after_another, jobs, world=2)


@pytest.fixture(scope="module")
def trained(two: list[list[Any]]) -> list[dict[str, Any]]:
    return [rank[0] for rank in two]


@pytest.fixture(scope="module")
def three(trained: list[dict[str, Any]]) -> list[list[Any]]:
    """Three ranks: means, gathers and broadcasts, and a training of two taken up."""
    states = [rank["feedback"]["state"] for rank in trained]
    resumed = (resumed_elsewhere, merged_state(states), states[1]["comm"], 100)
    jobs = [(means, "variable", 16), (moves,), resumed, (letters,), (noise,)]
    return run_on_ranks(one_after_another, jobs, world=3)


def check_means(ranks: list[list[dict[str, Any]]]) -> None:
    for cases in zip(*ranks, strict=True):
        for seen in cases:
            about = {k: v for k, v in seen.items() if k != "bits"}
            assert torch.equal(seen["bits"], cases[0]["bits"]), about
            assert seen["shape"], about
            assert seen["part_size"], about
            assert seen["finite_kept"], about
            assert seen["excess"] <= 1.0, about
            assert seen["part_excess"] <= 0.01, about
            if seen["size"] > 10_000 and seen["dtype"] is torch.float32:
                assert seen["deviation"] <= 1.03, about
                assert abs(seen["bias"]) < 0.06, about


def test_two_ranks_with_fixed_slots_keep_bound_variance_and_bits_of_the_mean(
    two: list[list[Any]],
) -> None:
    check_means([rank[3] for rank in two])


def test_three_ranks_keep_bound_variance_and_bits_of_the_mean(three: list[list[Any]]) -> None:
    check_means([rank[0] for rank in three])


def test_four_ranks_keep_bound_variance_and_bits_of_the_mean() -> None:
    check_means(run_on_ranks(means, "fixed", 16, world=4))


def test_noise_is_learnt_from_gradients_that_are_cut_between_ranks(
    three: list[list[Any]],
) -> None:
    found = [rank[4] for rank in three]
    assert found[0]["noise"] == found[1]["noise"] == found[2]["noise"]
    assert all(abs(one / 9.0 - 1) < 0.1 for one in found[0]["noise"])
    assert found[0]["sent"] < 0.5 * found[0]["plain"]  # the first of four steps is exact


def test_letters_of_any_size_arrive_whole_in_slots_too(three: list[list[Any]]) -> None:
    assert all(all(rank[3]) for rank in three)
    assert len(three[0][3]) == 2 * 8 * 3


def test_gathers_and_broadcasts_bring_everyone_the_same_within_the_bound(
    three: list[list[Any]],
) -> None:
    world = 3
    ranks = [rank[1] for rank in three]
    shapes = [(3, 5), (0,), (40, 50)]
    inputs = [
        torch.randn(shape, generator=torch.Generator().manual_seed(rank))
        for rank, shape in enumerate(shapes)
    ]
    for seen in ranks:
        for source in range(world):
            exact, gathered = seen["exact"][source], seen["gathered"][source]
            assert torch.equal(exact, inputs[source])
            assert gathered.shape == inputs[source].shape
            assert bool(((gathered - exact).abs() <= 0.01).all())
            assert bool(((seen["half"][source].float() - exact).abs() <= 0.05 + 0.02).all())
            assert torch.equal(seen["integers"][source], torch.arange(source + 3))
            assert torch.equal(gathered, ranks[0]["gathered"][source])
            sent = source + torch.linspace(0, 1, 300)
            error = (seen[f"from {source}"] - sent).abs().max()
            assert 0 < float(error) <= 0.01 * float(sent.square().mean().sqrt())
            assert torch.equal(seen[f"from {source}"], ranks[0][f"from {source}"])
    assert torch.equal(ranks[0]["pair"], torch.full((4,), (world - 1) / 2))
    assert torch.equal(ranks[0]["pair"], ranks[-1]["pair"])
    assert "pair" not in ranks[1]


@pytest.mark.parametrize("how", ["dither", "feedback", "fixed"])
def test_replicas_are_equal_bit_for_bit_after_a_hundred_steps(
    trained: list[dict[str, Any]], how: str
) -> None:
    first, second = (rank[how] for rank in trained)
    assert torch.equal(first["parameters"], second["parameters"])
    assert first["sent"] < 0.4 * first["plain"]
    assert sum(first["losses"][-10:]) < 0.5 * sum(first["losses"][:10])


@pytest.mark.parametrize("how", ["dither", "feedback", "fixed"])
def test_a_resumed_training_goes_the_way_it_would_have_gone(
    trained: list[dict[str, Any]], how: str
) -> None:
    """Though DDP's buckets are others in the first step of a process."""
    for rank in trained:
        assert torch.equal(rank[how]["parameters"], rank[how]["resumed"])


def test_a_training_resumes_with_another_number_of_ranks(
    trained: list[dict[str, Any]], three: list[list[Any]]
) -> None:
    states = [rank["feedback"]["state"] for rank in trained]
    state = merged_state(states)
    for name, residual in trained[0]["feedback"]["consolidated"]["residuals"].items():
        assert torch.allclose(residual, state["comm"]["residuals"][name], atol=1e-7)
    ranks = [rank[2] for rank in three]
    for seen in ranks:
        assert torch.equal(seen["parameters"], ranks[0]["parameters"])
        assert seen["refusal"].startswith("UnsupportedError: state is that of rank 1 of 2")
        assert seen["noise"] == ranks[0]["noise"]
        for name, residual in state["comm"]["residuals"].items():
            assert torch.allclose(seen["residuals"][name], residual, atol=1e-7)
    through = trained[0]["feedback"]["losses"][50:]
    assert sum(ranks[0]["losses"]) < 1.3 * sum(through)


def test_fsdp2_units_reduce_through_the_wire_within_the_bound(two: list[list[Any]]) -> None:
    for seen in (rank[1] for rank in two):
        assert seen["wire"]["units"] == 3
        names = set(seen["plain"]["steps"][0])
        assert set(seen["wire"]["noise"]) == names
        assert set(seen["feedback"]["state"]["residuals"]) == names
        for how in ("wire", "feedback"):
            first, *later = zip(seen["plain"]["steps"], seen[how]["steps"], strict=True)
            for name in names:
                assert torch.allclose(first[0][name], first[1][name], rtol=1e-4, atol=1e-7)
                for plain, wire in later:
                    bound = 0.5 * seen["wire"]["noise"][name] ** 0.5
                    assert float((plain[name] - wire[name]).abs().max()) <= bound
        changed = [
            not torch.equal(a[name], b[name])
            for a, b in zip(seen["plain"]["steps"], seen["wire"]["steps"], strict=True)
            for name in names
        ]
        assert any(changed)


def test_a_curvature_plan_has_every_fraction_and_is_the_same_on_all_ranks(
    two: list[list[Any]],
) -> None:
    first, second = (rank[2] for rank in two)
    kinds = [(fraction, compressed, True) for fraction in (0.5, 1.0) for compressed in (1, 0)]
    assert first["curvature"] == second["curvature"] == kinds
    # So large an overhead allows the freshest there is.
    assert first["curvature options"] == second["curvature options"] == 1


def test_a_plan_is_made_explained_and_changed_on_all_ranks_alike(two: list[list[Any]]) -> None:
    first, second = (rank[2] for rank in two)
    assert first["chosen"] == second["chosen"]
    assert first["rows"] == 7  # exact, and two codecs at three tolerances
    assert "predicted ms" in first["explained"]
    assert first["chosen"] in first["explained"]
    assert first["kept"]
    assert first["gradients"] == [None] * len(first["gradients"])
    assert first["at first"] != "none"
    assert first["at last"] == second["at last"]
    told, found = first["link"]
    assert found > 10 * told  # what rank 0 saw
    rows = first["observed"].splitlines()
    observed = next(row for row in rows if row.startswith("→"))
    assert "–" not in observed
    assert torch.equal(first["parameters"], second["parameters"])
    assert first["off"]
    assert first["auto hooked"] == second["auto hooked"]
    assert "predicted ms" in first["auto"]


def test_a_rank_that_dies_is_heard_of_by_the_others(tmp_path: Path) -> None:
    """The error of the connection arrives in backward; nobody waits for ever."""
    with pytest.raises(FileNotFoundError):  # of results, which these ranks do not leave
        run_on_ranks(dying, str(tmp_path), world=2)
    heard = (tmp_path / "0").read_text()
    assert "rror" in heard.split(":")[0]
    assert any(word in heard.lower() for word in ("connection", "closed", "timed out", "peer"))
