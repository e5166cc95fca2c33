"""Compressed sizes are part of the contract: they change in review or not at all."""

from __future__ import annotations

import zlib

import pytest

import fixtures
import ratios


def test_every_size_is_the_committed_one() -> None:
    lines = ratios.difference(ratios.read(), dict(ratios.sizes()))
    if lines:
        pytest.fail(
            "compressed sizes differ from benchmarks/results/ratios.csv:\n  "
            + "\n  ".join(lines)
            + "\nif that is meant, run `python benchmarks/ratios.py --write` and commit it",
            pytrace=False,
        )


def test_a_changed_a_missing_and_a_new_size_are_each_named() -> None:
    before = {("a", "abs 1", "fixed", "no"): 100, ("b", "abs 1", "fixed", "no"): 7}
    after = {("a", "abs 1", "fixed", "no"): 90, ("c", "abs 1", "entropy", "yes"): 5}
    assert ratios.difference(before, after) == [
        "a, abs 1, fixed: 100 → 90 bytes (-10, -10.00 %)",
        "b, abs 1, fixed: committed with 7 bytes, no longer measured",
        "c, abs 1, entropy with dither: 5 bytes, not in the committed table",
    ]


def test_fixtures_are_the_same_bits_on_every_machine() -> None:
    seen = {
        name: zlib.crc32(make().numpy().tobytes()) for name, make in fixtures.FIXTURES.items()
    }
    assert seen == CHECKSUMS


CHECKSUMS = {
    "gaussian": 3785738044,
    "relu": 2852785207,
    "relu_sparse": 1444791190,
    "channels_shifted": 3625441640,
    "smooth_plane": 4217907335,
    "smooth_volume": 3436295514,
    "rough_steps": 3877832121,
    "softmax_like": 3567665068,
    "gradient_like": 269557163,
    "zeros": 901377804,
    "constant": 878554357,
    "odd_length": 4024201331,
}
