"""The dashboard in a browser, offline: every part of it that is ours is there, and can be looked at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tempopt.report.dashboard.dashboard import Dashboard
from tempopt.report.dashboard.study_page import publish
from tempopt.report.plots import PLOTS
from tempopt.store.store import Store
from tests.report.dashboard_rows import write_whole
from tests.report.made_study import World

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Read now: no test is given a setting from outside.
SCREENSHOTS = os.environ.get("TEMPOPT_SCREENSHOTS")
WIDTHS = (1400, 400)
MARKUP = "<img src=x onerror=alert(1)>"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None, reason="NOT TESTED: the dashboard in a browser (on Debian: apt install chromium)"
    ),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """A finished study whose page is there; one of its values is markup."""
    url = f"sqlite:///{tmp_path_factory.mktemp('browser') / 'studies.db'}"
    write_whole(url, World(trials=20, search={"name": {"choices": [MARKUP, "plain"]}}))
    with Store.open(url) as store:
        publish(store, "pairs")
    with Dashboard(url, port=0) as dashboard:
        yield dashboard


@pytest.fixture
def look(browser: Browser, served: Dashboard) -> Iterator[Callable[[str, int], Page]]:
    """Open a page of the study; whatever goes wrong in it, or leads away from this machine, is an error."""
    wrong: list[str] = []
    pages: list[Page] = []

    def told(message: Any) -> None:
        if message.type == "error":
            wrong.append(message.text)

    def opened(path: str, width: int) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 900})
        pages.append(page)
        page.on("console", told)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda request: _at_home(request.url, served, wrong))
        assert served.study_url is not None
        page.goto(f"{served.study_url}{path}")
        return page

    yield opened
    for page in pages:
        page.close()
    assert not wrong


def _at_home(address: str, served: Dashboard, wrong: list[str]) -> None:
    if not address.startswith((served.url, "data:", "blob:")):
        wrong.append(f"asks {address}")


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[Page, str], None]:
    """Keep a picture of a page in the folder TEMPOPT_SCREENSHOTS, else in the test's own."""
    folder = Path(SCREENSHOTS or tmp_path)

    def keep(page: Page, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        size = page.viewport_size
        assert size is not None
        tallest = "Math.max(...[...document.querySelectorAll('*')].map(each => each.scrollHeight))"
        # what scrolls within the page is to be seen as well
        page.set_viewport_size({"width": size["width"], "height": min(page.evaluate(tallest), 6000)})
        page.wait_for_timeout(500)
        path = folder / f"dashboard-{name}-{size['width']}.png"
        page.screenshot(path=path)
        assert path.stat().st_size > 10_000

    return keep


def violations(page: Page, part: str) -> list[str]:
    """Return what axe-core finds wrong with a part of a page."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, context=part).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]


@pytest.mark.parametrize("width", WIDTHS)
def test_plots_of_ours_are_on_the_studys_page_with_marks_in_them(look: Any, picture: Any, width: int) -> None:
    page = look("", width)
    plots = page.locator("[id^='user-defined-plot:tempopt-']")
    plots.first.locator(".main-svg").first.wait_for(timeout=30_000)
    titles = {each.text_content() for each in plots.locator(".g-gtitle").all()}
    assert titles == {PLOTS[key].title for key in PLOTS}
    for plot in plots.all():
        marks = plot.locator(".cartesianlayer .trace path, .cartesianlayer image")
        marks.first.wait_for(state="attached", timeout=30_000)
    # and one of them tells what it is when it is pointed at
    mark = page.locator("[id='user-defined-plot:tempopt-history'] .scatterlayer .points path").first
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    page.locator("[id='user-defined-plot:tempopt-history'] .hovertext").first.wait_for(timeout=30_000)
    picture(page, "history")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_note_says_what_was_found_as_text_and_tables(look: Any, picture: Any, width: int) -> None:
    page = look("/note", width)
    page.get_by_role("heading", name="What was found").wait_for(timeout=30_000)
    assert "tempopt]:" not in page.inner_text("body")
    assert page.get_by_role("table").count() == 2
    assert page.get_by_role("heading", name="As code").count() == 1
    assert page.locator("pre", has_text="temperature_init=").count() >= 1
    # what people wrote is text, and no picture that failed to load
    assert page.locator("img[src='x']").count() == 0
    assert not violations(page, "table")
    for table in page.get_by_role("table").all():
        box = table.bounding_box()
        assert box is not None and box["x"] + box["width"] <= width
    picture(page, "note")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_trial_shows_its_curve_and_its_numbers(look: Any, picture: Any, width: int) -> None:
    page = look("/trials?numbers=3", width)
    page.get_by_text("Trial 3 (trial_id=").first.wait_for(timeout=30_000)
    assert page.get_by_text("tau_final").count() >= 1
    curve = page.locator("img[src*='/artifacts/']").first
    curve.wait_for(timeout=30_000)
    page.wait_for_function(
        "[...document.querySelectorAll(\"img[src*='/artifacts/']\")].every(i => i.complete && i.naturalWidth)"
    )
    picture(page, "trial")


def test_trials_can_be_selected_and_sorted_by_their_numbers(look: Any, picture: Any) -> None:
    page = look("/smartSelection", 1400)
    page.get_by_text("tau_final").first.wait_for(timeout=30_000)
    picture(page, "selection")
