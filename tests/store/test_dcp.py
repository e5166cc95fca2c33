"""torch.distributed.checkpoint with files of the store."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

import encke
from encke import store
from encke.errors import BoundError
from encke.store import StoreError

HERE = Path(__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore")


def state_of(seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {"model": nn.Linear(30, 40).state_dict(), "step": 3, "name": "x"}


def blank(state: dict[str, Any]) -> dict[str, Any]:
    model = {name: torch.zeros_like(x) for name, x in state["model"].items()}
    return {"model": model, "step": 0, "name": ""}


def load(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    found = blank(state)
    dcp.load(found, storage_reader=store.dcp.Reader(folder))
    return found


def test_a_state_comes_back_exactly_without_bounds(tmp_path: Path) -> None:
    state = state_of()
    dcp.save(state, storage_writer=store.dcp.Writer(tmp_path))
    found = load(tmp_path, state)
    assert (found["step"], found["name"]) == (3, "x")
    assert all(torch.equal(found["model"][n], x) for n, x in state["model"].items())


def test_bounds_by_name_hold(tmp_path: Path) -> None:
    state = state_of()
    bounds = {"model.weight": encke.Absolute(0.01)}
    dcp.save(state, storage_writer=store.dcp.Writer(tmp_path, bounds=bounds))
    found = load(tmp_path, state)["model"]
    apart = float((found["weight"] - state["model"]["weight"]).detach().abs().max())
    assert 0 < apart <= 0.01
    assert torch.equal(found["bias"], state["model"]["bias"])


def test_torchs_own_reader_names_ours(tmp_path: Path) -> None:
    state = state_of()
    dcp.save(state, storage_writer=store.dcp.Writer(tmp_path))
    with pytest.raises(CheckpointException, match=r"encke\.store\.dcp\.Reader"):
        dcp.load(blank(state), checkpoint_id=tmp_path)
    dcp.save(state, checkpoint_id=tmp_path / "plain")
    with pytest.raises(CheckpointException, match="torch's own"):
        load(tmp_path / "plain", state)


def test_an_overwritten_checkpoint_keeps_one_file_and_the_new_state(tmp_path: Path) -> None:
    for seed in (1, 2):
        dcp.save(state_of(seed), storage_writer=store.dcp.Writer(tmp_path))
    assert len(list(tmp_path.glob("*.encke"))) == 1
    found = load(tmp_path, state_of())["model"]
    assert torch.equal(found["weight"], state_of(2)["model"]["weight"])


def test_a_save_that_fails_midway_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcp.save(state_of(1), storage_writer=store.dcp.Writer(tmp_path))
    writer = store.dcp.Writer(tmp_path)

    def killed(**_: Any) -> None:
        raise OSError("killed")

    monkeypatch.setattr(writer, "finish", killed)
    with pytest.raises(CheckpointException, match="killed"):
        dcp.save(state_of(2), storage_writer=writer)
    found = load(tmp_path, state_of())["model"]
    assert torch.equal(found["weight"], state_of(1)["model"]["weight"])


def test_damage_is_found_before_anything_is_loaded(tmp_path: Path) -> None:
    state = state_of()
    dcp.save(state, storage_writer=store.dcp.Writer(tmp_path))
    (path,) = tmp_path.glob("*.encke")
    raw = bytearray(path.read_bytes())
    raw[40] ^= 1
    path.write_bytes(raw)
    found = blank(state)
    with pytest.raises(CheckpointException, match="damaged"):
        dcp.load(found, storage_reader=store.dcp.Reader(tmp_path))
    assert all(not x.any() for x in found["model"].values())


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BoundError):
        store.dcp.Writer(tmp_path, loss=3.0)
    with pytest.raises(CheckpointException, match="second moments"):
        dcp.save(state_of(), storage_writer=store.dcp.Writer(tmp_path, loss=1e-3))
    moments = {"optim.state.w.exp_avg_sq": torch.rand(5)}
    writer = store.dcp.Writer(tmp_path, bounds={"*": encke.Absolute(0.1)})
    with pytest.raises(CheckpointException, match="second moment"):
        dcp.save(moments, storage_writer=writer)
    assert issubclass(StoreError, encke.EnckeError)


def test_asynchronous_saves_in_a_thread(tmp_path: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        state = state_of()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = dcp.async_save(state, storage_writer=store.dcp.Writer(tmp_path))
        done.result()
        found = load(tmp_path, state)["model"]
    finally:
        torch.distributed.destroy_process_group()
    assert all(torch.equal(found[n], x) for n, x in state["model"].items())


@pytest.mark.slow
def test_a_sharded_checkpoint_of_two_ranks_is_loaded_on_one_and_four(tmp_path: Path) -> None:
    for ranks, action in ((2, "save"), (1, "load"), (4, "load")):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone",
             f"--nproc-per-node={ranks}", str(HERE / "dcp_rank.py"), action,
             str(tmp_path / "checkpoint"), str(tmp_path / "truth.encke")],
            capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert f"done {ranks}" in done.stdout


@pytest.mark.slow
def test_asynchronous_saves_in_a_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "dcp_process.py"), str(tmp_path / "checkpoint")],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "done" in done.stdout
