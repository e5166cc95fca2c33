"""ROC, rejection and mass are those of the definition, counted one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mass import MassCut, image_mass
from roc import area, background_at, difference, interval, rejection, resamplings, roc

Jets = tuple[np.ndarray, np.ndarray]


@st.composite
def jets(draw: st.DrawFn) -> Jets:
    """Scores with ties, and labels of both kinds."""
    scored = draw(
        st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), min_size=0, max_size=30)
    )
    scored += [(draw(st.integers(0, 6)), 0), (draw(st.integers(0, 6)), 1)]
    scores, labels = zip(*scored, strict=True)
    return np.array(scores, dtype=float), np.array(labels)


@given(jets())
def test_the_curve_has_the_efficiencies_of_every_threshold(found: Jets) -> None:
    scores, labels = found
    expected = [(0.0, 0.0)]
    for threshold in sorted(set(scores), reverse=True):
        passed = scores >= threshold
        signal = np.sum(passed & (labels == 1)) / np.sum(labels == 1)
        background = np.sum(passed & (labels == 0)) / np.sum(labels == 0)
        expected.append((signal, background))
    curve = roc(scores, labels)
    found_pairs = list(zip(curve.signal, curve.background, strict=True))
    assert np.array(found_pairs) == pytest.approx(np.array(expected))


@given(jets())
def test_the_area_is_the_chance_that_signal_scores_above_background(found: Jets) -> None:
    scores, labels = found
    won = [
        1.0 if s > b else 0.5 if s == b else 0.0
        for s in scores[labels == 1]
        for b in scores[labels == 0]
    ]
    assert area(scores, labels) == pytest.approx(sum(won) / len(won))


@given(jets(), st.sampled_from([0.1, 0.3, 0.5, 1.0]))
def test_rejection_counts_background_beside_that_share_of_signal(
    found: Jets, efficiency: float
) -> None:
    scores, labels = found
    signal, background = scores[labels == 1], scores[labels == 0]
    # Take whole groups of equal scores from the top, and of the last one a part.
    wanted, passed = efficiency * len(signal), 0.0
    for threshold in sorted(set(scores), reverse=True):
        here = np.sum(signal == threshold)
        part = min(1.0, wanted / here) if here else 1.0
        passed += part * np.sum(background == threshold)
        wanted -= part * here
        if wanted <= 1e-9:
            break
    expected = len(background) / passed if passed else math.inf
    assert rejection(scores, labels, efficiency) == pytest.approx(expected)


def test_one_kind_alone_has_no_curve() -> None:
    with pytest.raises(ValueError, match="3 of 3 are signal"):
        roc(np.arange(3.0), np.ones(3, dtype=np.int64))


def test_bootstrap_samples_keep_the_number_of_each_kind() -> None:
    labels = np.array([1] * 5 + [0] * 9)
    samples = resamplings(labels, draws=20, seed=1)
    assert {int(labels[index].sum()) for index in samples} == {5}
    assert len({tuple(index) for index in samples}) == 20
    again = resamplings(labels, draws=20, seed=1)
    assert all(np.array_equal(*pair) for pair in zip(samples, again, strict=True))


def scored(count: int, distance: float) -> Jets:
    generator = np.random.default_rng(0)
    labels = np.arange(count) % 2
    return generator.normal(size=count) + distance * labels, labels


def test_the_interval_has_the_width_that_theory_gives_the_area() -> None:
    scores, labels = scored(600, 1.0)
    low, high = interval(area, scores, labels)
    now = area(scores, labels)
    # Hanley and McNeil (1982) for a binormal-like curve with 300 of each kind.
    q1, q2 = now / (2 - now), 2 * now**2 / (1 + now)
    variance = now * (1 - now) + 299 * (q1 - now**2) + 299 * (q2 - now**2)
    assert low < now < high
    assert (high - low) / 2 == pytest.approx(math.sqrt(variance) / 300, rel=0.3)


def test_a_difference_on_the_same_jets_is_surer_than_either() -> None:
    scores, labels = scored(600, 1.0)
    nearly = scores + 0.05 * np.random.default_rng(1).normal(size=600)
    found, spread = difference(area, scores, nearly, labels)
    low, high = interval(area, scores, labels)
    assert abs(found) < 4 * spread
    assert spread < (high - low) / 10
    assert difference(area, scores, scores, labels) == (0.0, 0.0)


def test_no_background_passing_is_an_infinite_rejection() -> None:
    scores, labels = np.array([3.0, 2.0, 1.0, 0.0]), np.array([1, 1, 0, 0])
    assert rejection(scores, labels, 0.5) == math.inf
    assert background_at(roc(scores, labels), 1.0) == 0


def test_mass_is_the_sum_over_pairs_of_pixels() -> None:
    image = torch.rand(2, 5, 6, generator=torch.Generator().manual_seed(0))
    for k in range(2):
        pixels = [(r, c, float(image[k, r, c])) for r in range(5) for c in range(6)]
        square = sum(
            p * q * ((r - s) ** 2 + (c - d) ** 2)
            for i, (r, c, p) in enumerate(pixels)
            for s, d, q in pixels[:i]
        )
        assert float(image_mass(image)[k]) == pytest.approx(math.sqrt(square))


def test_a_cut_on_mass_scores_by_how_often_a_mass_was_signal() -> None:
    images = torch.zeros(400, 4, 4)
    images[:, 0, 0] = 1
    images[:, 0, 3] = torch.arange(400) / 400  # mass grows along the jets
    labels = (torch.arange(400) % 200 >= 100).long()  # in turn background and signal
    cut = MassCut(images, labels, bins=4)
    assert torch.equal(cut(images) > 0.5, labels.bool())
