"""Several ranks train as one: equal weights, one set of files, resumed bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from many_ranks import LONGER, all_of, other_number, weights
from ranks import run_on_ranks
from small_cells import small_study

import encke
from encke.errors import UnsupportedError
from encke.study.errors import StudyError
from encke.study.exchange import parse
from encke.study.ranks import Ranks, joined
from encke.study.train import train
from encke.study.zoo import Batch


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_on_ranks(all_of, str(tmp_path_factory.mktemp("ranks")), world=2)


@pytest.mark.slow
def test_a_training_on_ranks_resumes_to_the_same_weights_and_row(two: list[Any]) -> None:
    (first, _), (second, _) = two
    assert all(map(torch.equal, first["whole"], first["half"]))
    whole, half = first["rows"]
    assert whole == half
    assert first["status"] == "done"
    assert second["status"] == "failed"  # a blank row: the first rank measures


@pytest.mark.slow
def test_every_rank_has_its_own_part_of_the_checkpoint(two: list[Any]) -> None:
    parts = two[0][0]["middle"]["ranks"]
    assert [part["wire"]["rank"] for part in parts] == [0, 1]
    assert parts[0]["wire"]["policy"] == parts[1]["wire"]["policy"]
    assert parts[0]["tape"] != parts[1]["tape"]  # ranks keep activations of other examples


@pytest.mark.slow
def test_ranks_that_share_batches_train_as_one_process_does(
    two: list[Any], tmp_path: Path
) -> None:
    train(small_study("plain", training=LONGER), tmp_path)
    for shared, own in zip(two[0][1], weights(tmp_path), strict=True):
        torch.testing.assert_close(shared, own, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_state_of_two_ranks_goes_on_with_one(two: list[Any]) -> None:
    state = two[0][0]["middle"]
    assert run_on_ranks(other_number, state, world=1) == [12]


@pytest.mark.slow
def test_the_command_trains_on_ranks_and_explains_its_plan_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m"]
    command += ["encke", "train", "mlp", "--data", "digits", "--policy", "encke"]
    command += ["--wire", "auto", "--steps", "4", "--batch", "128", "--out", "a", "--json"]
    package = Path(encke.__file__).parents[1]  # as installed, with its native kernels
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "done"
    assert done.stderr.count("ms a step without exchange") == 1
    assert done.stderr.count("2 ranks: gradients exchanged") == 1
    kept = {path.name for path in (tmp_path / "a").iterdir()}
    assert kept >= {"checkpoint.pt", "metrics.jsonl", "results.jsonl", "wire.json"}
    plan = parse(str(tmp_path / "a" / "wire.json")).plan
    assert plan is not None
    assert plan.link.world == 2
    # The wire has half of the tolerance, the tape the other half.
    assert max(choice.tolerance for choice in plan.choices()) == pytest.approx(0.005)


def test_parts_of_a_batch_are_equal_and_cover_it() -> None:
    batch = Batch((torch.arange(11), torch.arange(11.0)), torch.arange(11))
    parts = [Ranks(rank=rank, world=3).part(batch) for rank in range(3)]
    seen = sorted(int(x) for part in parts for x in part.target)
    assert seen == list(range(9))
    assert all(torch.equal(part.inputs[0], part.target) for part in parts)


def test_what_cannot_be_shared_out_is_refused() -> None:
    ranks = Ranks(rank=0, world=4)
    with pytest.raises(StudyError, match="3 examples for 4 ranks"):
        ranks.part(Batch((torch.zeros(3, 2),), torch.zeros(3)))
    with pytest.raises(StudyError, match="a graph"):
        ranks.part(Batch((torch.zeros(8, 2), torch.eye(8).to_sparse()), torch.zeros(8)))


def test_without_torchrun_the_wire_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with (
        pytest.raises(StudyError, match="torchrun --nproc-per-node=2 -m encke train"),
        joined(),
    ):
        pass


@pytest.mark.parametrize(("text", "said"), [("outo", "allowed are auto"), ("2", "tolerance")])
def test_a_wire_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        parse(text)
