"""No command destroys a file: outputs are checked first, written whole, then renamed."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from encke import atomic
from encke.cli import main, wire
from encke.errors import OutputError

COMPRESS = ["--abs", "0.1", "--codec", "fixed"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- the same file ---------------------------------------------------------------------------


def itself(path: Path) -> Path:
    return path


def roundabout(path: Path) -> Path:
    (path.parent / "sub").mkdir()
    return path.parent / "sub" / ".." / path.name


def hard_link(path: Path) -> Path:
    link = path.with_name("hard.npy")
    os.link(path, link)
    return link


def symbolic_link(path: Path) -> Path:
    link = path.with_name("soft.npy")
    link.symlink_to(path.name)
    return link


def linked_folder(path: Path) -> Path:
    link = path.parent / "folder"
    link.symlink_to(path.parent, target_is_directory=True)
    return link / path.name


@pytest.mark.parametrize("alias", [itself, roundabout, hard_link, symbolic_link, linked_folder])
@pytest.mark.parametrize("command", ["compress", "decompress"])
def test_the_input_is_never_replaced_by_whatever_path(
    command: str,
    alias: Callable[[Path], Path],
    npy: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = npy
    if command == "decompress":
        assert main(["compress", str(npy), *COMPRESS]) == 0
        source = npy.with_suffix(".encke")
    before = source.read_bytes()
    output = alias(source)
    there = names(npy.parent)
    flags = COMPRESS if command == "compress" else []
    for force in ([], ["--force"]):
        assert main([command, str(source), "-o", str(output), *flags, *force]) == 2
        assert "are the same file" in capsys.readouterr().err
        assert source.read_bytes() == before
        assert names(npy.parent) == there


def test_an_input_that_is_a_link_is_never_replaced(npy: Path) -> None:
    before = npy.read_bytes()
    link = symbolic_link(npy)
    assert main(["compress", str(link), "-o", str(npy), *COMPRESS, "--force"]) == 2
    assert npy.read_bytes() == before


def test_a_report_never_replaces_the_results_it_is_made_of(study: Path) -> None:
    for name in ("study.json", "results.jsonl", "cells/a.json"):
        before = (study / name).read_bytes()
        assert main(["study", "report", str(study), "-o", str(study / name), "--force"]) == 2
        assert (study / name).read_bytes() == before


# -- nothing is replaced without --force -----------------------------------------------------


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    (folder / "cells").mkdir(parents=True)
    (folder / "study.json").write_text('{"schema": 1, "cells": ["a"], "name": "x"}')
    (folder / "results.jsonl").write_text("")
    (folder / "cells" / "a.json").write_text('{"cell": "a", "status": "done"}')
    return folder


def test_a_report_is_replaced_only_with_force(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import encke.study.report

    monkeypatch.setattr(encke.study.report, "page", lambda *_: "the page")
    page = study.parent / "report.html"
    command = ["study", "report", str(study), "-o", str(page)]
    page.write_text("precious")
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert page.read_text() == "precious"
    assert main([*command, "--force"]) == 0
    assert page.read_text() == "the page"


def test_figures_of_a_wire_bench_are_replaced_only_with_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from encke.wire.bench import run

    figures = dict.fromkeys(wire._COLUMNS, 1.0) | {"contestant": "fp16", "remark": ""}
    monkeypatch.setattr(run, "run_ranks", lambda *_, **__: [figures])
    table = tmp_path / "figures.csv"
    table.write_text("precious")
    command = ["wire", "bench", "--csv", str(table)]
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert table.read_text() == "precious"
    assert main([*command, "--force"]) == 0
    assert table.read_text().startswith("ranks,rate,contestant")
    assert names(tmp_path) == ["figures.csv"]


def test_a_file_that_comes_to_exist_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def write() -> None:
        with atomic.replacing(path, force=False) as file:
            file.write(b"new")
            path.write_text("precious")

    with pytest.raises(OutputError, match="--force"):
        write()
    assert path.read_text() == "precious"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("/dev/null", "device or a pipe"),
        ("/dev/full", "device or a pipe"),
        ("folder", "it is a folder"),
        ("missing/a.encke", "does not exist; make it first"),
        ("file/a.encke", "is not a folder"),
        ("read-only/a.encke", "is read-only"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_the_work(
    name: str,
    complaint: str,
    npy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from encke.cli import compress

    def never(*_: object, **__: object) -> None:
        raise AssertionError("nothing is compressed for an output that cannot be written")

    monkeypatch.setattr(compress, "_packed", never)
    for folder in ("folder", "read-only"):
        (npy.parent / folder).mkdir()
    (npy.parent / "read-only").chmod(0o500)
    (npy.parent / "file").touch()
    access = os.access
    monkeypatch.setattr(  # as for any user but root, who may write everywhere
        os, "access", lambda path, mode: Path(path).name != "read-only" and access(path, mode)
    )
    there = names(npy.parent)
    output = npy.parent / name
    assert main(["compress", str(npy), "-o", str(output), *COMPRESS, "--force"]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert str(output) in said
    assert names(npy.parent) == there
    assert name[0] != "/" or stat.S_ISCHR(output.stat().st_mode)


def test_a_link_stays_and_the_file_behind_it_is_replaced(npy: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    behind = tmp_path / "elsewhere" / "a.encke"
    behind.write_bytes(b"old")
    behind.chmod(0o600)
    link = tmp_path / "link.encke"
    link.symlink_to(behind)
    assert main(["compress", str(npy), "-o", str(link), *COMPRESS]) == 2
    assert main(["compress", str(npy), "-o", str(link), *COMPRESS, "--force"]) == 0
    assert link.is_symlink()
    assert behind.read_bytes()[:4] == b"ENCK"
    assert stat.S_IMODE(behind.stat().st_mode) == 0o600
    assert names(behind.parent) == ["a.encke"]


# -- interrupted -----------------------------------------------------------------------------


def written(command: str, npy: Path, study: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command line that replaces `old`, a file beside its input."""
    import encke.study.report

    monkeypatch.setattr(encke.study.report, "page", lambda *_: "the page")
    old = str(npy.with_name("old.npy"))
    if command == "decompress":
        assert main(["compress", str(npy), *COMPRESS]) == 0
        return ["decompress", str(npy.with_suffix(".encke")), "-o", old, "--force"]
    if command == "report":
        return ["study", "report", str(study), "-o", old, "--force"]
    return ["compress", str(npy), "-o", old, *COMPRESS, "--force"]


@pytest.mark.parametrize("command", ["compress", "decompress", "report"])
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2, "No space left on device"),
        (OSError(errno.EIO, "Input/output error"), 2, "Input/output error"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=["full", "broken", "ctrl-c"],
)
def test_what_goes_wrong_while_writing_is_said_and_leaves_the_old_file(
    command: str,
    error: BaseException,
    code: int,
    said: str,
    npy: Path,
    study: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = written(command, npy, study, monkeypatch)
    npy.with_name("old.npy").write_bytes(b"old")
    there = names(npy.parent)

    def fails(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fails)
    capsys.readouterr()
    assert main(line) == code
    message = capsys.readouterr().err
    assert said in message
    assert code == 130 or "old.npy" in message
    assert ".part" not in message
    assert names(npy.parent) == there
    assert npy.with_name("old.npy").read_bytes() == b"old"


def test_a_file_that_the_system_cuts_short_is_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resource = pytest.importorskip("resource")
    source = tmp_path / "noise.npy"
    np.save(source, np.random.default_rng(0).normal(size=100_000).astype(np.float32))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        code = main(["compress", str(source), *COMPRESS])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2
    said = capsys.readouterr().err
    assert "cannot write" in said
    assert "noise.encke: File too large" in said
    assert names(tmp_path) == ["noise.npy"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_standard_output_that_is_full_is_an_error(
    npy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compress", str(npy), *COMPRESS]) == 0
    full = open("/dev/full", "w")  # noqa: SIM115  closing it fails too
    monkeypatch.setattr(sys, "stdout", full)
    assert main(["info", str(npy.with_suffix(".encke"))]) == 2
    with suppress(OSError):
        full.close()
    assert capsys.readouterr().err == "encke: standard output: No space left on device\n"
