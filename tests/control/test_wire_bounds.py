"""One tolerance rules what the tape keeps and what the wire exchanges."""

from __future__ import annotations

import pytest

from encke.control import Adaptive
from encke.control.wire import WireBounds
from encke.errors import UnsupportedError
from encke.wire import BoundPolicy, NoiseRule, Observation, Segment
from encke.wire.lattice import deviation

SEGMENT = Segment(name="layer.weight", values=10_000, world=4)


def seen(policy: BoundPolicy, *, step: int, times: float | None = None) -> None:
    """A step whose error has `times` the promised variance."""
    bound = policy.bound(SEGMENT, step=step)
    error = None
    if times is not None and bound is not None:
        error = times * deviation(bound, SEGMENT.world) ** 2
    policy.observe(
        Observation(segment=SEGMENT, step=step, bound=bound, noise=1.0, square=0.1, error=error)
    )


def test_tape_and_wire_share_one_tolerance() -> None:
    tape = Adaptive(0.5)
    policy = WireBounds(0.04, tape=tape, share=0.25)
    assert policy.tolerance == pytest.approx(0.01)
    assert tape.tolerance == pytest.approx(0.03)
    seen(policy, step=1)
    alone = NoiseRule(0.01)
    seen(alone, step=1)
    assert policy.bound(SEGMENT, step=2) == alone.bound(SEGMENT, step=2)
    with pytest.raises(UnsupportedError, match="share is"):
        WireBounds(0.01, share=1.0)


def test_more_variance_than_promised_tightens_a_bound_and_then_ends_it() -> None:
    policy = WireBounds(0.01)
    seen(policy, step=1)
    first = policy.bound(SEGMENT, step=2)
    assert first is not None
    seen(policy, step=2, times=4.0)
    assert policy.bound(SEGMENT, step=3) == pytest.approx(first / 2)
    again = WireBounds(0.01)
    again.load_state_dict(policy.state_dict())
    assert again.bound(SEGMENT, step=3) == policy.bound(SEGMENT, step=3)
    seen(policy, step=3, times=1.0)
    assert policy.bound(SEGMENT, step=4) == pytest.approx(first / 2**0.5)
    for step in (4, 5, 6):
        assert policy.bound(SEGMENT, step=step) is not None
        seen(policy, step=step, times=4.0)
    assert policy.bound(SEGMENT, step=7) is None
