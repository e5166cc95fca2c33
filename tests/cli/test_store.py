"""`encke store` on files of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import encke
from encke import store
from encke.cli import main


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = nn.Linear(40, 30)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 40)).square().sum().backward()
    optimizer.step()
    path = tmp_path / "a.encke"
    store.save(path, model, optimizer, loss=1e-3, extra={"epoch": 2})
    return path


def test_info_and_plan_tell_bounds_and_promises(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "info", str(stored)]) == 0
    told = capsys.readouterr().out
    assert "model/weight" in told
    assert "optimizer/state/0/exp_avg_sq" in told
    assert "promise: on average" in told
    assert main(["store", "plan", str(stored)]) == 0
    assert "model/weight" in capsys.readouterr().out
    assert main(["store", "info", "--json", str(stored)]) == 0
    (facts,) = json.loads(capsys.readouterr().out)
    sizes = sum(tensor["bytes"] for tensor in facts["tensors"])
    assert 0 < sizes < facts["bytes"] == stored.stat().st_size


def test_verify_finds_a_flipped_bit(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "verify", str(stored)]) == 0
    assert "every byte is right" in capsys.readouterr().out
    raw = bytearray(stored.read_bytes())
    raw[30] ^= 1
    stored.write_bytes(raw)
    assert main(["store", "verify", "--json", str(stored)]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["damaged"]
    stored.write_bytes(b"nothing")
    assert main(["store", "verify", str(stored)]) == 1
    assert "index" in capsys.readouterr().out


def test_export_and_pack_go_to_safetensors_and_back(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.safetensors"
    assert main(["store", "export", str(stored), "-o", str(out)]) == 0
    weights = load_file(out)
    assert weights.keys() == {"weight", "bias"}
    assert torch.equal(weights["weight"], store.load(stored)["model"]["weight"])
    assert main(["store", "export", str(stored), "-o", str(out)]) == 2
    packed = tmp_path / "b.encke"
    assert main(["store", "pack", str(out), "-o", str(packed)]) == 0
    assert torch.equal(store.load(packed)["model"]["weight"], weights["weight"])
    assert main(["store", "diff", str(stored), str(packed)]) == 0
    told = capsys.readouterr().out
    assert "model/weight" in told
    assert "only in" in told


@pytest.mark.parametrize("kind", ["torch", "store"])
def test_pack_takes_its_bounds_from_an_optimizers_second_moments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    model = nn.Linear(100, 50)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 100)).square().sum().backward()
    optimizer.step()
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    curvature = tmp_path / "adam.pt"
    if kind == "torch":
        torch.save(optimizer.state_dict(), curvature)
    else:
        store.save(curvature, optimizer=optimizer)
    command = ["store", "pack", str(tmp_path / "m.safetensors"), "--loss", "1e-3", "-o"]
    done = main([*command, str(tmp_path / "m.encke"), "--curvature", str(curvature)])
    assert done == 0
    assert (tmp_path / "m.encke").stat().st_size < 0.7 * 4 * 5050
    assert main([*command, str(tmp_path / "n.encke")]) == 2
    assert "--curvature" in capsys.readouterr().err


def test_files_that_are_no_stored_states_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.encke"
    path.write_bytes(encke.compress(torch.ones(3), encke.Absolute(0.1)).to_bytes())
    assert main(["store", "info", str(path)]) == 2
    assert "x.encke" in capsys.readouterr().err
    assert main(["store", "info", str(tmp_path / "none")]) == 2
