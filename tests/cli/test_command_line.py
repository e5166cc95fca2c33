"""How the command behaves as a command: lean start, one-line errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from encke.cli import compress, info, main
from encke.cli.compress import CODECS_HELP
from encke.codec import names


@pytest.mark.parametrize(
    "command",
    [[], ["compress"], ["bench"], ["doctor"], ["study"], ["study", "run"], ["train"]],
)
def test_help_does_not_import_torch(command: list[str]) -> None:
    program = (
        "import sys; from encke.cli import main\n"
        f"try: main({[*command, '--help']!r})\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'numpy', 'rich', 'zstandard'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: encke" in done.stdout


def test_python_dash_m_encke_is_the_command(npy: Path) -> None:
    command = [sys.executable, "-m", "encke", "compress", str(npy), "--abs", "0.1"]
    done = subprocess.run([*command, "--codec", "fixed"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "field.encke" in done.stdout
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 2
    assert again.stderr.startswith("encke: ")
    assert "Traceback" not in again.stderr


def test_help_names_every_codec() -> None:
    assert [name for name in names() if name not in CODECS_HELP] == []


@pytest.mark.parametrize("flags", [[], ["--abs", "1", "--range", "0.1"], ["--abs", "much"]])
def test_exactly_one_bound_is_asked_for(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compress", "field.npy", *flags])
    assert ended.value.code == 2


def test_an_impossible_bound_is_one_line_and_exit_2(
    npy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compress", str(npy), "--abs", "-1"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("encke: Absolute: error is -1.0")
    assert captured.err.count("\n") == 1


def test_an_unknown_backend_is_named(npy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compress", str(npy), "--abs", "1", "--backend", "abacus"]) == 2
    assert "'abacus'" in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["info"], ["decompress"], ["compress", "--abs", "1"], ["bench"]):
        assert main([*command, str(tmp_path / "gone.npy")]) == 2
        assert "gone.npy: No such file" in capsys.readouterr().err


def test_ctrl_c_exits_130(
    npy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compress, "_packed", interrupted)
    assert main(["compress", str(npy), "--abs", "1"]) == 130
    assert not npy.with_suffix(".encke").exists()
    assert capsys.readouterr().err == "encke: interrupted\n"


def test_a_defect_is_not_hidden(npy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(info, "_facts", defect)
    with pytest.raises(ZeroDivisionError):
        main(["info", str(npy)])


def test_a_terminal_gets_a_table_and_a_progress_bar(
    npz: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["compress", str(npz), "--abs", "0.1", "--codec", "fixed"]) == 0
    out = capsys.readouterr().out
    for name in ("first", "second", "wide"):
        assert name in out


def test_bench_announces_on_a_terminal_and_clears_the_line(
    npy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["bench", str(npy), "--codecs", "fixed,mask", "--repeat", "1"]) == 0
    captured = capsys.readouterr()
    assert "measuring field, 2 of 2" in captured.err
    assert captured.err.endswith("\r\033[K")
    assert "takes bool, the tensor is torch.float32" in captured.out.replace("\n", " ")
