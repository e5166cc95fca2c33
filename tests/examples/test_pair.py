"""Both trainings of a pair see the same, and what is measured is what is written."""

from __future__ import annotations

import math
from pathlib import Path

import measured
import pytest
import torch
import torch.nn.functional as F
from measured import Column, Row
from pair import Pair, passes
from torch import nn

from encke.study.data import Examples, Split


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 2))


def source() -> Examples:
    x = torch.randn(120, 64, generator=torch.Generator().manual_seed(0))
    pairs = Split(x, (x[:, 0] > 0).long())
    return Examples(name="sides", train=pairs, test=pairs)


def test_plain_and_encke_start_alike_and_stay_close(capsys: pytest.CaptureFixture[str]) -> None:
    pair = Pair.of(network, rate=1e-2, steps=10, tolerance=0.01)
    batches = passes(source(), batch=60, epochs=5, seed=0)
    pair.train(batches, F.cross_entropy, steps=10, name="seed 0")
    assert pair.plain.losses[0] == pair.encke.losses[0]
    assert pair.plain.losses[1] != pair.encke.losses[1]
    assert pair.plain.losses[-1] == pytest.approx(pair.encke.losses[-1], rel=0.1)
    assert pair.kept() > 3
    assert pair.relative_time() > 0
    assert "step 10 of 10" in capsys.readouterr().err


def test_passes_repeat_by_seed_and_differ_by_epoch() -> None:
    first, again, other = (
        [inputs for inputs, _ in passes(source(), batch=50, epochs=2, seed=seed)]
        for seed in (1, 1, 2)
    )
    assert len(first) == 4
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[2])
    assert not torch.equal(first[0], other[0])


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [Row("plain", 0, "AUC", 0.9), Row("mass, alone", None, "1/eps_B", math.inf)]
    measured.write(tmp_path / "new" / "rows.csv", rows)
    assert measured.read(tmp_path / "new" / "rows.csv") == rows
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["rows.csv"]


def test_a_table_has_mean_and_deviation_over_seeds() -> None:
    rows = [Row("a", 0, "m", 1.0), Row("a", 1, "m", 3.0), Row("b", None, "m", 5.0)]
    lines = measured.table(rows, ["a", "b", "c"], [Column("m", "M", "{:.1f}")])
    assert lines == [["", "M"], ["a", "2.0 ± 1.4"], ["b", "5.0"], ["c", ""]]
    signed = measured.table(rows, ["a"], [Column("m", "M", "{:+.1f}")])
    assert signed[1] == ["a", "+2.0 ± 1.4"], "a deviation has no sign"
    assert measured.markdown(lines).startswith("|  | M |\n|---|---|\n| a | 2.0 ± 1.4 |\n")
