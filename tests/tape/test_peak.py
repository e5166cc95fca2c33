"""The measured peak is that of the code inside, and nothing else's."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from encke.tape import peak
from encke.tape.peak import Peak, resident, resident_peak, trim

MIB = 1 << 20


def use(mebibytes: int) -> None:
    """Hold so much memory for a moment: pages are written to, so they are resident."""
    torch.ones(mebibytes * MIB // 4)


@pytest.fixture(autouse=True)
def _settled() -> None:
    use(64)  # threads, caches and libraries that a first use brings with it
    gc.collect()


def test_memory_that_was_freed_inside_still_counts() -> None:
    with Peak() as measured:
        use(96)
    assert 95 * MIB < measured.bytes < 128 * MIB


def test_a_peak_before_the_block_does_not_count() -> None:
    use(256)
    with Peak() as measured:
        use(48)
    assert 46 * MIB < measured.bytes < 80 * MIB


def test_memory_held_from_before_does_not_count() -> None:
    held = torch.ones(48 * MIB)
    with Peak() as measured:
        held.mul_(2)
    assert measured.bytes < 16 * MIB


def test_an_outer_measurement_sees_what_was_used_before_and_inside_an_inner_one() -> None:
    with Peak(every=10) as before:  # no samples in time: the mark alone must tell
        use(128)
        with Peak(every=10) as inner:
            use(48)
    with Peak(every=10) as after:
        with Peak(every=10):
            use(128)
        use(16)
    assert 46 * MIB < inner.bytes < 96 * MIB
    assert before.bytes > 120 * MIB
    assert after.bytes > 120 * MIB


def test_the_curve_rises_and_falls_with_what_is_held() -> None:
    import time

    with Peak() as measured:
        time.sleep(0.05)
        held = torch.ones(96 * MIB // 4)
        time.sleep(0.1)
        del held
        trim()
        time.sleep(0.1)
    times = [t for t, _ in measured.curve]
    sizes = [size for _, size in measured.curve]
    assert times == sorted(times)
    assert len(times) > 10
    assert sizes[0] < 16 * MIB
    assert max(sizes) > 90 * MIB
    assert sizes[-1] < 32 * MIB


def test_where_the_mark_cannot_be_reset_samples_tell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peak, "_CLEAR", tmp_path / "missing" / "clear_refs")
    use(256)
    with Peak() as measured:
        held = torch.ones(96 * MIB // 4)
        held.mul_(2)
    assert measured.how == "samples"
    assert 90 * MIB < measured.bytes < 200 * MIB


@pytest.mark.slow
def test_without_proc_what_exceeds_every_earlier_peak_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("_CLEAR", "_STATM", "_STATUS"):
        monkeypatch.setattr(peak, name, tmp_path / "missing" / name)
    assert resident() is None
    most = resident_peak()
    assert most is not None
    with Peak() as measured:
        torch.ones(most // 4)  # as much again as there ever was
    assert measured.how == "getrusage"
    assert measured.curve == []
    assert measured.bytes > most // 4


def test_resident_figures_are_of_this_process() -> None:
    now, most = resident(), resident_peak()
    assert now is not None
    assert most is not None
    assert 10 * MIB < now <= most + MIB
