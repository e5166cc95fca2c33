"""The science examples run from data to results, here on made-up data of the real shape."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType

import measured
import numpy as np
import pytest
from climate_tables import tables as climate_tables
from jets_tables import tables as jets_tables

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def command(name: str) -> ModuleType:
    path = ROOT / "examples" / name / "train.py"
    spec = importlib.util.spec_from_file_location(f"train_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with climate.npz and jets.npz, and ENCKE_DATA set to it."""
    generator = np.random.default_rng(0)
    place = 10 * generator.normal(size=(32, 64))
    members = {
        f"TREFHT_{k}": (280 + place + generator.normal(size=(12, 32, 64))).astype(np.float32)
        for k in range(3)
    }
    np.savez(tmp_path / "climate.npz", **members)
    energies = generator.exponential(size=(2, 60, 32, 32)) * (
        generator.random((2, 60, 32, 32)) < 0.1
    )
    energies[1, :, 12:20, 12:20] *= 3
    np.savez(tmp_path / "jets.npz", qcd=energies[0].astype("f4"), top=energies[1].astype("f4"))
    monkeypatch.setenv("ENCKE_DATA", str(tmp_path))
    return tmp_path


def test_climate_writes_what_it_prints(
    made_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, short = made_up / "climate.csv", ["--epochs", "2", "--batch", "4", "--width", "4"]
    assert command("climate").main(["--seeds", "0", *short, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "seed 0: step 12 of 12" in printed.err
    for line in (
        line for lines in climate_tables(measured.read(out)).values() for line in lines
    ):
        assert all(cell in printed.out for cell in line)
    values = {(r.way, r.measure): r.value for r in measured.read(out)}
    # Detail that is the same every year is what the delta method knows.
    assert values["delta method", "RMSE, all"] < values["interpolation", "RMSE, all"] / 3
    assert values["U-Net, Encke", "kept, times smaller"] > 3


def test_jets_prints_json_of_the_rows_it_writes(
    made_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, short = made_up / "jets.csv", ["--epochs", "2", "--batch", "24", "--width", "8"]
    assert command("jets").main(["--seeds", "3", *short, "--json", "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = measured.read(out)
    assert [(r["way"], r["seed"], r["measure"]) for r in printed] == [r[:3] for r in rows]
    for one, row in zip(printed, rows, strict=True):
        assert one["value"] == (
            pytest.approx(row.value, rel=1e-4) if math.isfinite(row.value) else None
        )
    assert {row.seed for row in rows} == {None, 3}
    curves = (made_up / "jets_roc.csv").read_text().splitlines()
    assert curves[0] == "way,seed,eps_S,eps_B"
    assert len(curves) == 1 + 3 * 50


@pytest.mark.parametrize("name", ["climate", "jets"])
def test_missing_data_are_said_with_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ENCKE_DATA", raising=False)
    assert command(name).main(["--seeds", "0"]) == 2
    said = capsys.readouterr().err
    assert f"{name}.npz" in said
    assert "ENCKE_DATA" in said


@pytest.mark.parametrize(
    ("name", "tables"), [("climate", climate_tables), ("jets", jets_tables)]
)
def test_the_page_shows_the_committed_results(name: str, tables: object) -> None:
    rows = measured.read(ROOT / "benchmarks" / "results" / f"{name}.csv")
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    found = tables(rows)  # type: ignore[operator]
    for title, lines in found.items():
        assert measured.markdown(lines) in page, f"{title}: print it with {name}_tables.py"
