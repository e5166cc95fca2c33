"""What a study or a training writes never takes the place of something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_cells import small_study

from encke.errors import OutputError
from encke.study import results
from encke.study import train as train_module
from encke.study.errors import StudyError
from encke.study.train import train


@pytest.mark.parametrize("resume", [False, True])
def test_files_of_another_training_or_study_are_not_replaced(
    tmp_path: Path, resume: bool
) -> None:
    study, other = small_study("plain"), small_study("plain", seeds=[1])
    for name in ("metrics.jsonl", "wire.json", "results.jsonl"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / name).write_text("precious")
        with pytest.raises(StudyError, match=f"holds {name} of something else"):
            train(study, tmp_path / name, resume=resume)
        assert [path.name for path in (tmp_path / name).iterdir()] == [name]
    results.write_study(tmp_path / "a", other)
    before = (tmp_path / "a" / "study.json").read_bytes()
    with pytest.raises(StudyError, match="give another --out"):
        train(study, tmp_path / "a", resume=resume)
    assert (tmp_path / "a" / "study.json").read_bytes() == before


def test_a_study_json_of_someone_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"mine": 1}')
    with pytest.raises(StudyError, match="would be replaced"):
        results.write_study(tmp_path, small_study("plain"))
    assert (tmp_path / "study.json").read_text() == '{"mine": 1}'


def test_rows_that_are_there_as_lines_alone_survive_another_run(tmp_path: Path) -> None:
    study = small_study("plain")
    row = {"cell": study.cells[0].id, "status": "done"}
    results.write_study(tmp_path, study)
    (tmp_path / "cells").rmdir()
    results.write_lines(tmp_path, [row])
    results.write_study(tmp_path, study)
    assert results.read(tmp_path).rows == [row]


def test_metrics_on_a_full_disk_are_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    log = train_module._Log(tmp_path / "metrics.jsonl", None)
    log.put("step", {"step": 1, "loss": 0.5})
    monkeypatch.setattr(train_module.os, "fsync", full)
    with pytest.raises(OutputError, match=r"metrics\.jsonl: No space left on device"):
        log.flush()
