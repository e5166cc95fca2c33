"""The page: complete, self-contained, and unharmed by whatever the rows contain."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib import resources
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rows import failed, matrix, row, study
from page_parts import Page

from encke.study.report import page
from encke.study.report.comparison import compare
from encke.study.report.embed import BUDGET, DETAILS, dumped, fitted
from encke.study.report.page import SCRIPTS

CHARTS = ("front", "curves", "time", "timeline", "layers", "histogram", "gradients")


def read(rows: list[dict[str, Any]], **changes: Any) -> Page:
    return Page(page(study(rows, **changes), rows))


def test_the_page_begins_with_the_answer_and_has_every_picture_with_its_table() -> None:
    made = read(matrix(networks=2))
    headings = [tag for tag, _ in made.elements if tag in ("h1", "h2")]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1
    identities = [attributes.get("id") for _, attributes in made.elements]
    assert len(set(filter(None, identities))) == len(list(filter(None, identities)))
    for chart in CHARTS:
        assert chart in identities
    assert (
        sum("behind" in (a.get("class") or "") for t, a in made.elements if t == "details") == 7
    )
    assert "The setting to use:" in made.text


def test_what_refers_to_a_part_of_the_page_finds_it() -> None:
    rows = [*matrix(networks=1), failed(policy=1, seed=9)]
    made = read(rows)
    known = {attributes.get("id") for _, attributes in made.elements}
    for _, attributes in made.elements:
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in known
        if (attributes.get("href") or "").startswith("#"):
            assert str(attributes["href"])[1:] in known


def test_the_page_loads_nothing_and_its_policy_allows_only_its_own_script() -> None:
    made = read(matrix(networks=1))
    assert not any("src" in attributes for _, attributes in made.elements)
    [icon] = [attributes["href"] for tag, attributes in made.elements if tag == "link"]
    assert str(icon).startswith("data:")  # without one, browsers ask the server for it
    source = page(study([]), matrix(networks=1))
    assert set(re.findall(r"https?://[^\s\"')]+", source)) == {"http://www.w3.org/2000/svg"}
    policy = next(str(a["content"]) for _, a in made.elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    for part in (made.scripts["program"], made.style):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not any("style" in a or any(k.startswith("on") for k in a) for _, a in made.elements)


def test_every_file_of_the_page_is_installed_and_used() -> None:
    folder = resources.files("encke.study.report").joinpath("assets")
    names = {entry.name for entry in folder.iterdir()}
    assert names == {*SCRIPTS, "style.css", "page.html"}


def test_the_results_are_embedded_as_they_are() -> None:
    rows = matrix(networks=1, seeds=2)
    assert read(rows).results == json.loads(json.dumps({"study": study(rows), "rows": rows}))


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--",
    "]]>",
    "\"' onload='alert(1)",
    "$title ${view} $$",
    "\\u003c/script>\u2028\u2029",
    "\ud800 \x00 \x1b[31m",
    "x" * 5000,
    "",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_is_shown_and_never_becomes_markup(name: str) -> None:
    ordinary = read([*matrix(networks=1, seeds=1), failed(seed=7)])
    rows = [*matrix(networks=1, seeds=1), failed(seed=7)]
    for made in rows:
        for key in ("model", "data", "policy", "cell"):
            made[key] = name if key != "policy" else name + made["policy"]
        made["policy_kind"] = name if made["policy_kind"] == "encke" else made["policy_kind"]
        if made["metric"]:
            made["metric"]["name"] = name
        made["environment"]["processor"] = name
        for layer in made["layers"] or []:
            layer["module"] = layer["how"] = layer["why"] = name
        if made["error"]:
            made["error"] = dict.fromkeys(("type", "message", "traceback"), name)
    source = page(study(rows, title=name, name=name), rows)
    source.encode("utf-8")
    made = Page(source)
    assert made.count("script") == ordinary.count("script") == 3
    assert made.count("img") == 0
    assert made.results["rows"][0]["data"] == name.encode("utf-8", "replace").decode("utf-8")


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_rows_with_anything_in_their_fields_still_give_a_page(data: st.DataObject) -> None:
    rows = matrix(networks=1, policies=2, seeds=2, layers=4)
    for made in rows:
        for key in data.draw(st.sets(st.sampled_from(sorted(made)), max_size=4)):
            made[key] = data.draw(json_values)
    [embedded] = re.findall(r'id="study-results">(.*)</script>', page(study(rows), rows))
    assert len(json.loads(embedded)["rows"]) == len(rows)


def test_null_fields_missing_fields_and_empty_rows_give_a_page() -> None:
    for rows in (
        [dict.fromkeys(row())],
        [dict.fromkeys(row()) | {"status": "done"}],
        [{}],
        [row(policy=1) | dict.fromkeys(("memory", "time", "metric", "curve", *DETAILS))],
    ):
        made = Page(page({}, rows))
        assert made.count("h1") == 1


def test_one_cell_and_no_plain_cell_say_what_is_missing() -> None:
    made = read([row(policy=1)])
    assert "without plain training to compare with" in made.text
    assert "add the policy “plain”" in made.text


def test_failed_cells_are_listed_with_their_error_and_missing_ones_with_their_names() -> None:
    rows = [row(), failed(policy=1)]
    made = read(rows, cells=[*(r["cell"] for r in rows), "never-run"])
    assert "1 cell of 3 failed" in made.text
    assert "RuntimeError made to fail" in made.text
    assert "1 cell not run yet or interrupted: never-run" in made.text
    assert "Failed and missing" not in read([row()]).text


def test_many_failures_stay_readable() -> None:
    rows = [failed(policy=1, seed=seed) for seed in range(60)]
    for made in rows:
        made["error"] = {"type": "E", "message": "m" * 9000, "traceback": "t" * 90_000}
    source = page(study(rows), rows)
    assert len(source.split('id="study-results"')[0]) < 500_000
    assert Page(source).count("li") >= 60


def test_a_study_under_way_says_how_much_of_it_there_is() -> None:
    rows = matrix(networks=1, policies=2, seeds=1)
    made = read(rows, cells=[*(r["cell"] for r in rows), "a", "b"])
    assert "2 of 4 trainings" in made.text
    assert "One seed cannot tell chance from effect" in made.text
    assert "One seed cannot" not in read(matrix(networks=1, policies=2, seeds=2)).text


def test_when_every_cell_failed_the_page_says_so() -> None:
    made = read([failed(), failed(policy=1)])
    assert "No cell of this study has finished" in made.text
    assert "2 cells failed" in made.text


def test_a_policy_whose_seeds_partly_failed_counts_the_others() -> None:
    rows = [row(policy=0, seed=0), row(policy=1, seed=0), failed(policy=1, seed=1)]
    group = read(rows).view["groups"][1]
    assert (group["rows"], group["failed"], group["metric"]["count"]) == ([1], 1, 1)


@pytest.mark.slow
def test_a_page_of_five_hundred_cells_stays_small_and_says_what_it_left_out() -> None:
    rows = matrix(networks=12, layers=90)
    assert len(rows) == 504
    source = page(study(rows), rows)
    assert len(source) < BUDGET + 1_500_000
    made = Page(source)
    assert "To keep this page small" in made.text
    shown = made.results["rows"]
    assert len(shown) == 504
    for kept, given_row in zip(shown, rows, strict=True):
        assert kept["metric"]["final"] == pytest.approx(given_row["metric"]["final"], rel=1e-4)
        assert len(kept["curve"]) == len(given_row["curve"])
    best = [g["rows"] for g in made.view["groups"] if g["best"]]
    assert all(any(shown[i]["layers"] for i in indices) for indices in best)


def test_thinning_keeps_the_bytes_of_layers_and_the_peak_of_a_step() -> None:
    rows = [row(policy=1, layers=12)]
    tiny = {"module": "t", "how": "exact", "plain_bytes": 4, "stored_bytes": 4, "elements": 1}
    rows[0]["layers"] += [dict(tiny) for _ in range(300)]
    rows[0]["timeline"]["plain"] = [[i / 999, 7 * i % 1000] for i in range(1000)]
    [shown], said = fitted(compare(rows), budget=20_000)
    assert said
    assert len(shown["layers"]) < 20
    for key in ("plain_bytes", "stored_bytes"):
        whole = sum(layer[key] for layer in rows[0]["layers"])
        assert sum(layer[key] for layer in shown["layers"]) == pytest.approx(whole, rel=1e-4)
    heights = [height for _, height in shown["timeline"]["plain"]]
    assert max(heights) == max(height for _, height in rows[0]["timeline"]["plain"])
    assert len(heights) <= 120


@given(json_values)
def test_embedded_json_is_valid_and_cannot_end_its_element(value: Any) -> None:
    written = dumped({"value": value})
    json.loads(written, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert not set(written) & set("<>&\u2028\u2029")


def test_script_and_style_cannot_end_their_elements() -> None:
    folder = resources.files("encke.study.report").joinpath("assets")
    for name in (*SCRIPTS, "style.css"):
        assert not re.search(r"</|<!--", folder.joinpath(name).read_text("utf-8"))


def test_the_page_of_the_same_rows_is_the_same() -> None:
    rows = matrix(networks=1)
    assert page(study(rows), rows) == page(study(rows), rows)
