"""The page in a real browser: it draws, explains, switches, fits and prints.

`make browser-test` gets what this needs where that is possible. ENCKE_CHROMIUM names another
browser than Debian's, ENCKE_SCREENSHOTS a folder for pictures of the page to look at.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from made_rows import failed, matrix, row, study

from encke.study.report import numbers, page

pytest.importorskip("playwright", reason="playwright is not installed: `make browser-test`")
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = os.environ.get("ENCKE_CHROMIUM") or shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("chromium is not installed: `make browser-test`", allow_module_level=True)

pytestmark = pytest.mark.slow
CHARTS = ("front", "curves", "time", "timeline", "layers", "histogram", "gradients")
WIDE, NARROW = 1600, 400
Rows = list[dict[str, Any]]
Opener = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        # Chromium refuses its sandbox to root, which CI usually is.
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def usual() -> Rows:
    return [*matrix(networks=3, seeds=2), failed(policy=1, seed=9)]


@pytest.fixture(scope="module")
def pages(usual: Rows) -> dict[int, str]:
    """Pages that are opened often."""
    return {id(usual): page(study(usual), usual)}


@pytest.fixture
def opened(browser: Browser, tmp_path: Path, pages: dict[int, str]) -> Iterator[Opener]:
    """Opens the page of some rows; no error, dialog or request may come of it until the end."""
    troubles: list[str] = []
    contexts = []

    def open_page(rows: Rows, *, width: int = WIDE, **options: Any) -> Page:
        target = tmp_path / "report.html"
        target.write_text(pages.get(id(rows)) or page(study(rows), rows), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 1000}, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda said: troubles.append(f"console: {said.text}"))
        tab.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: (troubles.append("dialog"), dialog.dismiss()))
        address = target.as_uri()
        tab.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((address, "blob:", "data:"))
                else troubles.append(f"request: {request.url}")
            ),
        )
        tab.goto(address)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def test_a_server_is_asked_for_the_page_and_nothing_else(
    browser: Browser, usual: Rows, pages: dict[int, str]
) -> None:
    asked: list[str] = []
    context = browser.new_context()

    def answer(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(body=pages[id(usual)], content_type="text/html; charset=utf-8")

    context.route("**/*", answer)
    tab = context.new_page()
    tab.goto("http://report.test/")
    assert plot(tab, "front").is_visible()
    tab.wait_for_load_state("networkidle")
    context.close()
    assert asked == ["http://report.test/"]


def plot(tab: Page, chart: str) -> Any:
    return tab.locator(f"#{chart} svg.plot").first


def test_every_picture_has_marks_and_nothing_is_loaded(opened: Opener, usual: Rows) -> None:
    tab = opened(usual)
    for chart in CHARTS:
        assert tab.locator(f"#{chart} svg.plot .mark").count() > 0, chart
        for drawn in tab.locator(f"#{chart} svg.plot").all():
            box = drawn.bounding_box()
            assert box is not None
            assert box["width"] > 250
            assert box["height"] > 150
    assert tab.locator("#front svg.plot").count() == 3
    assert "NaN" not in tab.content().split('id="study-results"')[0]


def before(element: Any) -> Any:
    """What the tab key reaches before an element."""
    stops = "button, summary, select, input, pre, [tabindex='0']"
    return element.evaluate_handle(
        """(element, stops) => {
          const all = [...document.querySelectorAll(stops)].filter((e) => e.checkVisibility());
          return all[all.indexOf(element) - 1];
        }""",
        stops,
    ).as_element()


def test_a_tooltip_appears_on_hover_and_on_focus(opened: Opener, usual: Rows) -> None:
    tab = opened(usual)
    tooltip = tab.locator("#tooltip")
    for chart in CHARTS:
        drawn = plot(tab, chart)
        assert tooltip.is_hidden(), chart
        drawn.evaluate("(plot) => plot.scrollIntoView({ block: 'center' })")
        tab.wait_for_timeout(50)  # until the event of scrolling is over, which hides tooltips
        drawn.locator(".mark").last.hover(force=True)
        assert tooltip.is_visible(), chart
        assert len(tooltip.inner_text()) > 10
        tab.mouse.move(2, 2)
        assert tooltip.is_hidden()

        before(drawn).focus()
        tab.keyboard.press("Tab")
        assert drawn.evaluate("(plot) => plot === document.activeElement"), chart
        assert tooltip.is_visible()
        tab.keyboard.press("Home")
        first = tooltip.inner_text()
        tab.keyboard.press("ArrowRight")
        assert tooltip.inner_text() != first
        assert tab.locator("#spoken").inner_text()
        tab.keyboard.press("Escape")
        assert tooltip.is_hidden()


def test_a_tooltip_appears_where_a_finger_taps_and_stays_on_the_screen(
    opened: Opener, usual: Rows
) -> None:
    tab = opened(usual, width=NARROW, has_touch=True)
    plot(tab, "front").locator(".mark").last.tap(force=True)
    box = tab.locator("#tooltip").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= NARROW


def background(tab: Page) -> str:
    return str(tab.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_the_theme_follows_the_system_until_it_is_switched_and_then_remembered(
    opened: Opener, usual: Rows
) -> None:
    tab = opened(usual, color_scheme="light")
    light = background(tab)
    tab.emulate_media(color_scheme="dark")
    dark = background(tab)
    assert light != dark
    tab.locator(".themes input[value=light]").check(force=True)
    assert background(tab) == light
    tab.reload()
    assert background(tab) == light
    assert tab.locator(".themes input[value=light]").is_checked()
    tab.locator(".themes input[value=system]").check(force=True)
    assert background(tab) == dark


def keep_pictures(tab: Page, width: int) -> None:
    """Screenshots for people, if they said where to."""
    if folder := os.environ.get("ENCKE_SCREENSHOTS"):
        for scheme in ("light", "dark"):
            tab.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            tab.screenshot(path=Path(folder) / f"{scheme}-{width}.png", full_page=True)


@pytest.mark.parametrize("width", [320, NARROW, 768, WIDE])
def test_nothing_sticks_out_at_the_side(opened: Opener, usual: Rows, width: int) -> None:
    tab = opened(usual, width=width)
    keep_pictures(tab, width)
    for details in tab.locator("details").all():
        details.evaluate("(details) => { details.open = true; }")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    sticking = tab.evaluate(
        """(width) => [...document.querySelectorAll("main *")]
          .filter((e) => !e.closest(".wide, pre, .unseen, caption, svg"))
          .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > width + 1)
          .map((e) => e.outerHTML.slice(0, 90))""",
        width,
    )
    assert sticking == []


def test_labels_stay_inside_their_pictures(opened: Opener, usual: Rows) -> None:
    for width in (NARROW, WIDE):
        outside = opened(usual, width=width).evaluate(
            """() => [...document.querySelectorAll("svg.plot text")].filter((text) => {
              const own = text.getBoundingClientRect();
              const all = text.ownerSVGElement.getBoundingClientRect();
              return own.left < all.left - 2 || own.right > all.right + 2
                || own.top < all.top - 2 || own.bottom > all.bottom + 2;
            }).map((text) => text.textContent)"""
        )
        assert outside == []


def test_print_has_no_controls_light_colours_and_all_pictures(
    opened: Opener, usual: Rows
) -> None:
    tab = opened(usual, color_scheme="dark")
    tab.emulate_media(media="print")
    assert background(tab) == "rgb(255, 255, 255)"
    for hidden in (".themes", "#filter select >> nth=0", "#download", ".switch >> nth=0"):
        assert tab.locator(hidden).is_hidden()
    assert tab.locator(".chip").first.is_visible()  # the legend
    for chart in CHARTS:
        assert plot(tab, chart).is_visible()
    assert tab.pdf(format="A4").startswith(b"%PDF")


def test_the_filter_chooses_what_every_picture_shows(opened: Opener, usual: Rows) -> None:
    tab = opened(usual)
    tab.locator("#filter select[name=model]").select_option("vgg16")
    assert tab.locator("#front figcaption").all_inner_texts() == ["vgg16 on fashion_mnist"]
    assert "vgg16" in tab.locator("select[name=training] option").first.inner_text()
    marks = tab.locator("#front svg.plot .mark").count()
    tab.get_by_role("checkbox", name="COMET's rule").uncheck(force=True)
    assert tab.locator("#front svg.plot .mark").count() == marks - 1
    tab.get_by_role("button", name="hide all").click()
    assert tab.locator("svg.plot").count() == 0
    assert tab.locator("#inside-none").is_visible()
    tab.get_by_role("button", name="show all").click()
    assert tab.locator("#front svg.plot .mark").count() == marks


def test_switches_change_axis_and_quantity(opened: Opener, usual: Rows) -> None:
    tab = opened(usual)
    tab.get_by_label("Measured peak of the training").check(force=True)
    assert "measured peak" in plot(tab, "front").text_content()
    tab.get_by_label("Test loss").check(force=True)
    assert "test loss" in plot(tab, "curves").text_content()


def test_the_table_behind_a_picture_has_a_row_for_every_setting(
    opened: Opener, usual: Rows
) -> None:
    tab = opened(usual)
    for chart in CHARTS:
        tab.locator(f"#{chart} summary").click()
        tab.locator(f"#{chart} tbody tr").first.wait_for()
        assert tab.locator(f"#{chart} tbody tr").count() > 4, chart
    groups = {(r["model"], r["policy"]) for r in usual}
    assert tab.locator("#front tbody tr").count() == len(
        groups - {("mlp", "Encke, tolerance 0.01")}
    )


def test_the_download_is_the_study_and_its_rows(
    opened: Opener, usual: Rows, tmp_path: Path
) -> None:
    tab = opened(usual)
    with tab.expect_download() as download:
        tab.locator("#download").click()
    target = tmp_path / "results.json"
    download.value.save_as(target)
    assert download.value.suggested_filename == "made-for-tests-results.json"
    assert json.loads(target.read_text())["rows"] == json.loads(json.dumps(usual))


def strange(change: Callable[[dict[str, Any]], None]) -> Rows:
    rows = matrix(networks=1, policies=3, seeds=2)
    for made in rows:
        change(made)
    return rows


HOSTILE = "</script><img src=x onerror=alert(1)><b>"
STRANGE: dict[str, Rows] = {
    "hostile names": strange(
        lambda r: r.update(
            model=HOSTILE,
            policy=HOSTILE + r["policy"],
            policy_kind="__proto__" if r["policy_kind"] == "encke" else r["policy_kind"],
            layers=[
                layer | {"how": "constructor", "why": HOSTILE} for layer in r["layers"] or []
            ],
        )
    ),
    "one cell": [row(policy=1)],
    "no plain cell": matrix(networks=2)[3:],
    "only failed cells": [failed(), failed(policy=1)],
    "no curves and no memory": strange(lambda r: r.update(curve=None, memory=None, time=None)),
    "lists of nonsense": strange(
        lambda r: r.update(
            layers=[None, 3, {"plain_bytes": "x"}, {"plain_bytes": 0}],
            gradient_error=[{}, None, {"predicted": 0, "measured": 1}],
            timeline={"plain": [[0], None, ["a", 1], [0.5, 3]], "kept": 7},
            error_histogram={"edges": [1], "counts": ["a"]},
        )
    ),
    "equal values": strange(
        lambda r: r.update(metric=r["metric"] | {"final": 50.0}, time={"relative": 1.0})
    ),
    "numbers at the edge": strange(
        lambda r: r.update(
            metric=r["metric"] | {"final": 1e-300 if r["seed"] else float("nan")},
            memory={"plain_bytes": 2**50, "stored_bytes": 0, "ratio": None, "peak_bytes": 1},
        )
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_rows_are_drawn_without_an_error(opened: Opener, name: str) -> None:
    tab = opened(STRANGE[name], width=NARROW)
    assert tab.locator("h1").is_visible()
    assert tab.locator("img").count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= NARROW
    if name in ("hostile names", "one cell", "no plain cell", "equal values"):
        assert tab.locator("#front svg.plot .mark").count() > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_stand_out_from_their_background(
    opened: Opener, usual: Rows, scheme: str
) -> None:
    words = ("ink", "quiet", "accent", "bad")
    marks = ["plain", "encke", "fixed", "comet", "group", "zfp", "bf16", "checkpoint"]
    marks += ["save", "other"]
    tab = opened(usual, color_scheme=scheme)
    ratios: dict[str, float] = tab.evaluate(
        """(names) => {
          const probe = document.body.appendChild(document.createElement("i"));
          const bright = (name) => {
            probe.style.color = `var(--${name})`;
            const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number);
            const [r, g, b] = parts.slice(0, 3).map((v) => v / 255)
              .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          const found = {};
          for (const name of names) {
            for (const ground of ["paper", "raised"]) {
              found[`${name} on ${ground}`] = contrast(bright(name), bright(ground));
            }
          }
          return found;
        }""",
        [*words, *marks],
    )
    too_faint = {
        pair: ratio
        for pair, ratio in ratios.items()
        if ratio < (4.5 if pair.startswith(words) else 3)
    }
    assert too_faint == {}


def test_pictures_and_sentences_write_numbers_alike(opened: Opener) -> None:
    source = resources.files("encke.study.report").joinpath("assets", "numbers.js").read_text()
    # No exact halves: Python rounds them to even, JavaScript up.
    values = [0.0, 1e-9, 0.00123, 0.51, 0.9999, 1.005, 2.999, 12.34, 99.96, 1234.6, 5e6, 3e12]
    values += [-value for value in values[2:]]
    tab = opened([row()])
    written = tab.evaluate(
        f"""(values) => {{ {source}
          return values.map((v) => [digits(v), size(v), times(v), measure(v, "%"),
            measure(v, "K"), difference(v, "%"), difference(v, "")]); }}""",
        values,
    )
    for value, found in zip(values, written, strict=True):
        assert found == [
            numbers.digits(value),
            numbers.size(value),
            numbers.times(value),
            numbers.measure(value, "%"),
            numbers.measure(value, "K"),
            numbers.difference(value, "%"),
            numbers.difference(value, ""),
        ]


def test_five_hundred_cells_are_drawn(opened: Opener) -> None:
    tab = opened(matrix(networks=12, layers=90))
    assert tab.locator("#front svg.plot").count() == 12
    assert tab.locator("#layers svg.plot .mark").count() > 20
