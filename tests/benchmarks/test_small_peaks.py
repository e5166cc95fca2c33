"""The highest live memory of small trainings is what the committed figures say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "tape"
sys.path.insert(0, str(FOLDER))

from small_peaks import CASES, committed, in_a_process  # noqa: E402

#: Of the figure: what a torch build or a kernel's choice of layout may move.
_MARGIN = 0.05


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_peak_has_not_risen(case: str) -> None:
    _, expected = committed()[case]
    found = in_a_process(case, with_encke=True)
    assert found <= expected * (1 + _MARGIN), (
        f"{case}: {found:,} bytes, {expected:,} are committed; if that is meant, write them "
        "anew with `python benchmarks/tape/small_peaks.py --write`"
    )


def test_encke_needs_less_than_plain_training_in_every_case() -> None:
    assert {case for case, (plain, encke) in committed().items() if encke < plain} == set(CASES)
