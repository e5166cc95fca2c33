"""Docstrings reach the reference as what they look like, and every page its place."""

from __future__ import annotations

import doctest
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "_extensions" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


to_rst = load("docstrings").to_rst


@pytest.mark.parametrize("name", ["docstrings", "page_patterns"])
def test_examples_of_the_extensions_hold(name: str) -> None:
    failed, tried = doctest.testmod(load(name))
    assert (failed, tried > 0) == (0, True)


def test_names_with_meanings_beside_them_become_definitions() -> None:
    lines = ["step0/1   the steps", "limit     of `x`,", "          or none"]
    assert to_rst(lines) == [
        "``step0/1``",
        "   the steps",
        "``limit``",
        "   of ``x``, or none",
        "",
    ]


def test_a_sentence_in_front_of_names_stays_a_sentence() -> None:
    found = to_rst(["What there is:", "first   one", "second  two"])
    assert found[:3] == ["What there is:", "", "``first``"]


def test_indented_formulas_and_examples_stay_as_they_are() -> None:
    assert to_rst(["    e_i² = n_i · V", "", ">>> f(`x`)", "1"]) == [
        "::",
        "",
        "    e_i² = n_i · V",
        "",
        ">>> f(`x`)",
        "1",
        "",
    ]


def test_prose_has_no_markup_but_names() -> None:
    assert to_rst(["|decoded - x| of `name_` and trailing_ *stars*"]) == [
        "\\|decoded - x\\| of ``name_`` and trailing\\_ \\*stars\\*",
        "",
    ]


def test_two_spaces_inside_prose_make_no_table() -> None:
    lines = ["It ends.  Then it goes on", "in the next line."]
    assert to_rst(lines) == [*lines, ""]


def test_the_index_has_a_place_for_every_page() -> None:
    pages = load("page_patterns")
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    there = [str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")]
    found = pages.named(pages.patterns(index), there)
    assert {"tutorial", "theory", "tape", "format", "climate", "jets"} <= set(found)
    # What no pattern names is listed under the last heading.
    assert ":others:" in index
