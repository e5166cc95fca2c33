"""What docs/integrations.md shows can be run, and a missing library says how to get it."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest

from encke.cli import main
from encke.errors import UnsupportedError

DOCUMENT = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()


def blocks(language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, DOCUMENT, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(3), ids=["transformers", "lightning", "script"])
def test_the_examples_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    program = blocks("python")[number]
    exec(compile(program, f"docs/integrations.md, example {number + 1}", "exec"), {})
    *_, last = capsys.readouterr().out.splitlines()
    assert re.search(r"\d+", last)


def test_there_are_no_further_examples() -> None:
    assert len(blocks("python")) == 3
    assert len(blocks("sh")) == 2


def test_the_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv)\n")
    single, several = (shlex.split(block) for block in blocks("sh"))
    assert single[0] == "encke"
    assert main(single[1:]) == 0
    assert capsys.readouterr().out == "['train.py', '--epochs', '2']\n"
    assert (tmp_path / "kept.jsonl").exists()
    # Run by test_run.py, which adds how the ranks meet.
    assert several[:2] == ["python", "-m"]
    assert several[2:4] == ["torch.distributed.run", "--nproc-per-node=2"]
    assert several[4:] == ["-m", "--", "encke", "run", "--log", "kept.jsonl", "train.py"]


class Without(MetaPathFinder):
    """As if some packages were not installed."""

    def __init__(self, packages: list[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname in self._packages:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


@pytest.mark.parametrize(
    ("module", "libraries", "extra"),
    [
        ("transformers", ["transformers"], r"encke\[transformers\]"),
        ("lightning", ["lightning", "pytorch_lightning"], r"encke\[lightning\]"),
    ],
)
def test_a_missing_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, libraries: list[str], extra: str
) -> None:
    name = f"encke.integrations.{module}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    for loaded in [key for key in sys.modules if key.split(".")[0] in libraries]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "meta_path", [Without(libraries), *sys.meta_path])
    with pytest.raises(UnsupportedError, match=extra):
        importlib.import_module(name)


def test_importing_the_package_of_integrations_imports_no_library() -> None:
    program = (
        "import sys, encke, encke.integrations\n"
        "heavy = {'torch', 'transformers', 'lightning', 'pytorch_lightning'}\n"
        "sys.exit(f'imported {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
