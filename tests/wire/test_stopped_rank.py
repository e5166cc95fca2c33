"""A rank that is stopped ends the others within the timeout, with an error that names it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from stopping import TIMEOUT, every_way_to_wait, heard_by_the_others, one_mean

from encke.wire import ExchangeError

pytestmark = pytest.mark.slow


def test_every_way_to_wait_for_a_stopped_rank_ends_and_names_it(tmp_path: Path) -> None:
    heard = heard_by_the_others(
        every_way_to_wait,
        world=3,
        stop=1,
        meeting=f"file://{tmp_path}/meeting",
        folder=tmp_path,
    )
    assert len(heard) == 2
    for rank in heard:
        backward, mean, later, exact = rank
        for one in (backward, mean, exact):
            assert one["kind"][:2] == ["ExchangeError", "EnckeError"], one
            assert one["silent"] == [1]
            assert one["message"].startswith("rank 1 did not answer during the exchange of ")
            assert one["seconds"] < 5 * TIMEOUT  # not torch's 30 minutes
        assert backward["completed_step"] == 3
        assert "bucket 0 (last.bias … " in backward["message"]
        assert "of step 4; last completed step: 3" in backward["message"]
        assert "exchange of 'mine'" in mean["message"]
        assert "exchange of 'factors'" in exact["message"]
        assert later["kind"][:2] == ["ClosedError", "EnckeError"]
        assert "rank 1 did not answer" in later["message"]


def test_a_store_that_is_stopped_too_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ((heard,),) = heard_by_the_others(
        one_mean, world=2, stop=0, meeting=f"tcp://127.0.0.1:{port}", folder=tmp_path
    )
    assert heard["kind"][:2] == ["ExchangeError", "EnckeError"], heard
    assert heard["silent"] == [0]
    assert heard["completed_step"] == 0
    assert heard["seconds"] < 5 * TIMEOUT


@pytest.mark.parametrize(
    ("silent", "said"),
    [
        (None, "some rank did not answer, nor did the group's store"),
        ((), "all ranks have given up"),
        ((2,), "rank 2 did not answer during the exchange of 'x'; last completed step: 7. "),
        ((2, 5), "ranks 2, 5 did not answer during"),
    ],
)
def test_the_error_says_who_did_not_answer_and_where(
    silent: tuple[int, ...] | None, said: str
) -> None:
    error = ExchangeError("timed out", silent=silent).during("'x'", 7)
    assert said in str(error)
    assert str(error).endswith("timed out")
    assert (error.silent, error.completed_step) == (silent, 7)
