"""What the documents show can be run, and what they point to exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from encke.bound.kinds import KINDS
from encke.cli import main
from encke.codec import names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
# Pages whose examples are run in order, as a reader would; integrations.md has its own test.
RUN = [
    "index.md",
    "tape.md",
    "head.md",
    "store.md",
    "telemetry.md",
    *sorted(p.name for p in DOCS.glob("how-to-*.md")),
]
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands_of(text: str) -> list[list[str]]:
    lines = "".join(blocks(text, "sh")).splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("encke ")]


def test_the_examples_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    programs = blocks(README, "python")
    assert len(programs) >= 4
    namespace: dict[str, object] = {}
    for number, program in enumerate(programs, start=1):
        exec(compile(program, f"README.md, example {number}", "exec"), namespace)
    commands = commands_of(README)
    assert {command[1] for command in commands} == {
        "compress",
        "decompress",
        "info",
        "bench",
        "doctor",
    }
    for command in commands:
        assert main(command[1:]) == 0, capsys.readouterr()


def run_examples(page: Path) -> int:
    """Runs every Python block of a page in one namespace; how many there are."""
    programs = blocks(page.read_text(encoding="utf-8"), "python")
    namespace: dict[str, object] = {}
    for number, program in enumerate(programs, start=1):
        exec(compile(program, f"{page.name}, example {number}", "exec"), namespace)
    return len(programs)


@pytest.mark.parametrize("page", RUN)
def test_the_examples_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    count = run_examples(DOCS / page)
    if page in ("tape.md", "how-to-policy.md", "how-to-budget.md"):
        assert count >= 3


@pytest.mark.slow
def test_the_tutorial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_examples(DOCS / "tutorial.md") >= 9
    assert "times smaller" in capsys.readouterr().out
    shown = commands_of((DOCS / "tutorial.md").read_text(encoding="utf-8"))
    assert shown == [
        command for command in commands_of(README) if command in shown
    ]  # run there


def test_the_readme_names_every_codec_and_every_bound() -> None:
    for codec in names():
        assert f"\n| `{codec}` |" in README
    for bound in KINDS.values():
        assert f"\n| `{bound.__name__}(" in README
        assert f"`--{bound.kind}" in README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_within_the_repository_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_in_the_documents_exist(document: Path) -> None:
    defined = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    mentioned = set(re.findall(r"(?:^|`)make ([a-z-]+)\b", document.read_text(), re.MULTILINE))
    assert mentioned - defined == set()
