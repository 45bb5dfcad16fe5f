"""The page as a browser shows it: offline, without an error, on a phone and on a desk, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tempopt.report.page.html import render_report
from tempopt.report.plots import PLOTS
from tempopt.report.study_result import StudyResult
from tests.report.made_study import World, make
from tests.report.test_html import SCRIPT, hostile

_PLOTS_READY = "html[data-drawn=all]"
_PATIENCE = 60_000


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, confirmed_result: StudyResult) -> dict[str, Path]:
    """Written pages by what they show."""
    folder = tmp_path_factory.mktemp("pages")
    results = {
        "whole": confirmed_result,
        "one_layer": make(World(layers=1, trials=8)).result(),
        "named": hostile(confirmed_result, name=SCRIPT, metric=SCRIPT),
        "long": make(World(search={"p" * 500: {"low": 0.0, "high": 1.0}})).result(),
        "nan": make(World(nan=True)).result(),
        "pruned": make(World(trials=12, ends=["pruned"], confirmed=False)).result(),
        "lost": make(World(trials=12, ends=["failed", "diverged"], confirmed=False)).result(),
        "large": make(World(trials=10_000, reports=5)).result(),
    }
    results["empty"] = replace(results["lost"], runs=(), curves={}, measured={}, best=None, winner=None)
    paths = {name: folder / f"{name}.html" for name in results}
    for name, path in paths.items():
        path.write_text(render_report(results[name]), encoding="utf-8")
    return paths


class PageOpener:
    """Pages that are open, by name, width and scheme; opening one takes a while, so tests share them."""

    def __init__(self, browser: Any, pages: dict[str, Path]) -> None:
        self._browser = browser
        self._pages = pages
        self._open: dict[tuple[str, int, str], Any] = {}
        self.errors: list[str] = []

    def __call__(self, name: str, *, width: int = 1400, scheme: str = "light") -> Any:
        """Return the page, opened offline; what its console complains of is kept."""
        key = (name, width, scheme)
        if key not in self._open:
            context = self._browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme=scheme,
                reduced_motion="reduce",
                offline=True,
            )
            page = self._open[key] = context.new_page()
            page.on("console", lambda message: self._complain(message.type, message.text))
            page.on("pageerror", lambda error: self.errors.append(str(error)))
            page.on("dialog", lambda dialog: self.errors.append(dialog.message))
            page.goto(self._pages[name].as_uri())
            page.wait_for_selector(_PLOTS_READY, timeout=_PATIENCE)
        return self._open[key]

    def _complain(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(text)

    def close(self) -> None:
        """Close all pages."""
        for page in self._open.values():
            page.context.close()


@pytest.fixture(scope="module")
def page_opener(browser: Any, pages: dict[str, Path]) -> Iterator[PageOpener]:
    """Return what opens pages, each once."""
    pages_opener = PageOpener(browser, pages)
    yield pages_opener
    pages_opener.close()


@pytest.fixture
def open_page(page_opener: PageOpener) -> Iterator[PageOpener]:
    """Return what opens a page, and fail the test at any error in its console."""
    yield page_opener
    errors, page_opener.errors[:] = list(page_opener.errors), []
    assert not errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_opens_offline_and_fits(
    open_page: PageOpener, screenshots: Path, width: int, scheme: str
) -> None:
    page = open_page("whole", width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("section h2").count() == 5
    columns = page.evaluate(
        "getComputedStyle(document.querySelector('#plots .pairs')).gridTemplateColumns.split(' ').length"
    )
    assert columns == (2 if width == 1280 else 1)
    page.screenshot(path=screenshots / f"report_{width}_{scheme}.png", full_page=True)


_BARS = """() => Object.fromEntries([...document.querySelectorAll(".plot")].flatMap((plot) => {
    const box = (each) => each.getBoundingClientRect();
    const bar = plot.querySelector(".colorbar");
    if (!bar) return [];
    const title = plot.querySelector(".infolayer [class^=x][class$=title]");
    const labels = [...bar.querySelectorAll(".cbaxis text")].map(box);
    const apart = labels.every((one, i) => labels.slice(i + 1).every((other) =>
        one.right < other.left || other.right < one.left ||
        one.bottom < other.top + 2 || other.bottom < one.top + 2));
    const below = !title || box(bar.querySelector(".cbfill, .cbfills path")).top >= box(title).bottom;
    const turned = labels.some((each) => each.height > 30);
    return [[plot.dataset.plot, [apart, below, turned]]];
}))"""


@pytest.mark.parametrize("name", ["whole", "one_layer"])
def test_on_a_phone_scales_of_colours_lie_below_the_axis_with_labels_apart(
    open_page: PageOpener, screenshots: Path, name: str
) -> None:
    page = open_page(name, width=390)
    bars = page.evaluate(_BARS)
    assert bars.keys() >= {"landscape", "entropy"}
    assert all(layout_checks == [True, True, False] for layout_checks in bars.values()), bars
    page.screenshot(path=screenshots / f"report_{name}_390.png", full_page=True)


_MARKS = """key => document.getElementById(`plot-${key}`).querySelectorAll(
    ".points path, .lines path, .js-line, .bars path, .heatmaplayer image, .errorbar path").length"""


def test_code_is_copied_and_the_reader_is_told(open_page: PageOpener) -> None:
    page = open_page("whole")
    page.evaluate("document.getElementById('use-code').open = true")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy YAML").click()
    page.get_by_text("Copied", exact=False).first.wait_for()
    copied_text = page.evaluate("navigator.clipboard.readText()")
    assert copied_text == page.locator("#code-yaml").text_content()


def test_the_page_can_be_used_from_the_keyboard(open_page: PageOpener) -> None:
    page = open_page("whole", width=400, scheme="dark")
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = false)")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "verdict"
    numbers = page.locator("#numbers-differences summary")
    numbers.focus()
    page.keyboard.press("Enter")
    assert page.locator("#numbers-differences table").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_keeps_anybody_out(open_page: PageOpener, width: int, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = open_page("whole", width=width, scheme=scheme)
    # what is behind the summaries has to be seen by everybody, too
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    axe_results = Axe().run(page)
    assert not axe_results.response["violations"], axe_results.generate_report()


def test_plots_follow_the_reader_into_the_dark_and_back(open_page: PageOpener) -> None:
    page = open_page("whole")
    light = page.evaluate(_INK)
    page.emulate_media(color_scheme="dark")
    _wait_until(page, f"{_INK} !== '{light}'")
    page.emulate_media(color_scheme="light")
    _wait_until(page, f"{_INK} === '{light}'")


_INK = "getComputedStyle(document.querySelector('#plot-history .xtitle')).fill"


def _wait_until(page: Any, expression: str) -> None:
    """Wait until it is true; Playwright's own way evaluates strings, which the page's policy forbids."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


def test_print_is_light_and_keeps_within_the_paper(open_page: PageOpener, screenshots: Path) -> None:
    page = open_page("whole", width=1200, scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="light")
    widths = page.evaluate(
        "[...document.querySelectorAll('.plot .main-svg')].map(each => each.getBoundingClientRect().width)"
    )
    assert max(widths) <= 690  # A4 less its margins
    assert page.evaluate(_INK) == "rgb(29, 35, 41)"
    assert not page.locator(".copy").first.is_visible()
    page.set_viewport_size({"width": 690, "height": 980})
    page.screenshot(path=screenshots / "report_print.png", full_page=True)
    page.pdf(path=screenshots / "report.pdf", format="A4")


@pytest.mark.long
@pytest.mark.parametrize("name", ["named", "long", "nan", "pruned", "lost", "empty", "large"])
def test_a_hostile_study_has_a_page_like_any_other(
    open_page: PageOpener, screenshots: Path, name: str
) -> None:
    page = open_page(name, width=400)
    assert page.locator("section h2").count() >= 4
    assert page.locator(".plot").count() + page.locator("p.absent").count() >= len(PLOTS)
    if name == "named":
        assert page.locator("h1").text_content() == SCRIPT
        assert SCRIPT in page.locator("#plot-history .ytitle").text_content()
    for width in (400, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        _wait_until(page, f"document.documentElement.scrollWidth <= {width}")
        page.screenshot(path=screenshots / f"report_{name}_{width}.png", full_page=True)


def test_without_the_network_a_page_that_needs_it_says_so(
    browser: Any, confirmed_result: StudyResult, tmp_path: Path
) -> None:
    path = tmp_path / "cdn.html"
    path.write_text(render_report(confirmed_result, plotlyjs="cdn"), encoding="utf-8")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(path.as_uri())
    assert "could not" in page.locator("#plot-history").text_content()
    page.locator("#numbers-history summary").click()
    assert page.locator("#numbers-history table").is_visible()
    context.close()
