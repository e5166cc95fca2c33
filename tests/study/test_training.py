"""A training that stops and goes on ends at the same weights, bit for bit."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_cells import small_cell, small_study, without_timings

from encke import store
from encke.cli import main
from encke.study import train as train_module
from encke.study.cell import prepare
from encke.study.errors import StudyError
from encke.study.train import train
from encke.study.training import Training

pytestmark = pytest.mark.slow

LONGER = {"steps": 22, "points": 3, "pairs": 1, "train": 512, "test": 64}


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def weights(training: Training) -> list[torch.Tensor]:
    return [t.clone() for t in training.network.state_dict().values()]


@pytest.mark.parametrize(
    "policy",
    ["plain", "encke", "encke:prefer=ratio", "comet", "group:adaptive=true", "checkpoint"],
)
def test_from_a_checkpoint_of_any_step_to_the_same_weights(policy: str) -> None:
    cell = small_cell(policy, training=LONGER | {"optimizer": "adamw", "rate": 0.01})
    whole = prepare(cell)
    states = {}
    for stop in (1, 8, 9, 16):  # steps 1, 2, 4, 8, 16 are observed: learning is then pending
        whole.run(until=stop)
        states[stop] = through_a_file(whole.state_dict())
    whole.run()
    for stop, state in states.items():
        rest = prepare(cell)
        rest.load_state_dict(state)
        assert rest.step == stop
        rest.run()
        assert all(map(torch.equal, weights(rest), weights(whole))), stop
        assert rest.curve == whole.curve


OWN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def build():
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(0.2),
                               torch.nn.ReLU(), torch.nn.Linear(64, 3))

def loaders():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 16, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return DataLoader(TensorDataset(x, y), 32, shuffle=True), [(x, y)]
"""


def test_dropout_and_shuffled_loaders_of_a_user_go_on_as_well(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    cell = small_cell(
        "encke",
        models=["own.py:build"],
        data=["own.py:loaders"],
        folder=tmp_path,
        training={"epochs": 3, "points": 2},
    )
    whole = prepare(cell)
    assert whole.steps == 9
    whole.run(until=4)
    state = through_a_file(whole.state_dict())
    whole.run()
    rest = prepare(cell)
    rest.load_state_dict(state)
    rest.run()
    assert all(map(torch.equal, weights(rest), weights(whole)))


def test_a_checkpoint_of_another_training_is_refused() -> None:
    state = prepare(small_cell("plain")).state_dict()
    with pytest.raises(StudyError, match="give the same settings"):
        prepare(small_cell("plain", seeds=[1])).load_state_dict(state)


class StoppedError(Exception):
    pass


def test_a_training_that_is_stopped_goes_on_to_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small_study("encke", training=LONGER)
    undisturbed = train(study, tmp_path / "a")
    with pytest.raises(StudyError, match="--resume"):
        train(study, tmp_path / "a")

    def stop(point: dict[str, Any]) -> None:
        if point["step"] >= 8:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(study, tmp_path / "b", every=5, on_point=stop)
    with (tmp_path / "b" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "step": 6, "loss"')  # as a killed process leaves it
    resumed = train(study, tmp_path / "b", resume=True)
    assert without_timings(resumed) == without_timings(undisturbed)
    a, b = ((tmp_path / d / "metrics.jsonl").read_text() for d in "ab")
    assert a == b
    assert [json.loads(line)["step"] for line in a.splitlines() if '"step"' in line][-1] == 22

    def never(*_: object) -> None:
        raise AssertionError("a finished training is not run again")

    monkeypatch.setattr(train_module, "prepare", never)
    assert train(study, tmp_path / "b", resume=True) == resumed


@pytest.mark.slow
def test_files_of_the_store_are_saved_without_changing_the_training(tmp_path: Path) -> None:
    command = ["train", "mlp", "--data", "digits", "--steps", "6", "--optimizer", "adamw"]
    assert main([*command, "--out", str(tmp_path / "a"), "--json"]) == 0
    saving = ["--save-every", "2", "--save-loss", "1e-3"]
    assert main([*command, "--out", str(tmp_path / "b"), "--json", *saving]) == 0
    states = [torch.load(tmp_path / d / "checkpoint.pt", weights_only=True) for d in "ab"]
    for name, x in states[0]["network"].items():
        assert torch.equal(x, states[1]["network"][name])
    saved = sorted((tmp_path / "b" / "saved").iterdir())
    assert [p.name for p in saved] == ["step-2.encke", "step-4.encke", "step-6.encke"]
    last = store.load(saved[-1])
    assert last["extra"]["step"] == 6
    for name, x in states[1]["network"].items():
        assert float((last["model"][name] - x).abs().max()) < float(x.abs().max())
