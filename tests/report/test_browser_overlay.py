"""What tempopt lays over Optuna's dashboard, in a browser: fails where Optuna's page has changed under it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tempopt.report.dashboard.dashboard import Dashboard
from tempopt.report.dashboard.study_page import publish
from tempopt.report.plots import PLOTS
from tempopt.store.optuna_calls import make_study
from tempopt.store.store import Store
from tests.report.dashboard_rows import write_whole
from tests.report.made_study import World

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS = (1280, 390)
PATIENCE = 30_000
PLOT = "[id='user-defined-plot:tempopt-{}']"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """A finished study and one that has only begun, with their pages."""
    url = f"sqlite:///{tmp_path_factory.mktemp('overlay') / 'studies.db'}"
    write_whole(url, World(trials=20))
    spec = World(study={"name": "early"}).spec()
    with Store.open(url) as store:
        store.create_study("early", spec.to_json(), spec.identity())
        make_study(store.url, name="early", direction="maximize", metric="val_accuracy")
        for name in ("pairs", "early"):
            publish(store, name)
    with Dashboard(url, port=0) as dashboard:
        yield dashboard


@pytest.fixture
def opened(browser: Browser, served: Dashboard) -> Iterator[Callable[..., Page]]:
    """Open a page of the dashboard; an error in its console fails the test."""
    wrong: list[str] = []
    with closing(browser.new_context(viewport={"width": WIDTHS[0], "height": 900})) as context:

        def at(path: str, *, width: int = WIDTHS[0], dark: bool = False) -> Page:
            page = context.new_page()
            page.set_viewport_size({"width": width, "height": 900})
            page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.goto(f"{served.url}{path}")
            if dark:
                page.locator("[data-testid^=Brightness]").click(force=True)
                page.locator("html[data-tempopt=dark]").wait_for(timeout=PATIENCE)
            return page

        yield at
    assert not wrong


def study_page(opened: Callable[..., Page], **how: Any) -> Page:
    """Open the page of the finished study, from the list, and wait until its plots are drawn."""
    page = opened("/dashboard", **how)
    page.locator(".tempopt-line").first.wait_for(timeout=PATIENCE)
    page.get_by_role("link", name="pairs").click()
    for key in PLOTS:
        page.locator(PLOT.format(key)).locator(".main-svg").first.wait_for(timeout=PATIENCE)
    return page


def brightness(page: Page, part: str) -> float:
    """Return how bright a part of a page is on the whole, from 0 to 255."""
    from PIL import Image

    picture = Image.open(io.BytesIO(page.locator(part).screenshot())).convert("L")
    pixels = picture.resize((64, 64)).tobytes()
    return sum(pixels) / len(pixels)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_says_state_and_verdict_and_offers_nothing_that_is_refused(
    opened: Any, screenshots: Path, width: int, dark: bool
) -> None:
    page = opened("/dashboard", width=width, dark=dark)
    cards = page.locator(".MuiCard-root > a")
    cards.filter(has_text="pairs").get_by_text("done · Gain shown: train at a constant temperature").wait_for(
        timeout=PATIENCE
    )
    early = cards.filter(has_text="early").locator(".tempopt-line").text_content()
    assert early == "running · No verdict yet"
    page.screenshot(path=screenshots / f"dashboard_list_{width}_{'dark' if dark else 'light'}.png")
    # that they are there, so that a new label is noticed, and that nobody sees them
    for refused in ("button[aria-label='delete study']", "button[aria-label='rename study']"):
        assert page.locator(refused).count() == 2
        assert not page.locator(refused).first.is_visible()
    create = page.locator("button", has_text="Create")
    assert create.count() == 1
    assert not create.is_visible()
    assert page.get_by_role("button", name="Reload").is_visible()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_studys_page_leads_with_the_verdict_and_keeps_to_the_reports_order(
    opened: Any, screenshots: Path, width: int, dark: bool
) -> None:
    page = study_page(opened, width=width, dark=dark)
    lead = page.get_by_role("region", name="Verdict")
    assert lead.locator("p").first.text_content() == "Gain shown"
    assert "What to do: Train" in lead.inner_text()
    best = page.locator(".tempopt-best")
    boxes = {key: page.locator(PLOT.format(key)).bounding_box() for key in PLOTS}
    places = [(round(box["y"] / 100), box["x"]) for box in boxes.values() if box is not None]
    assert len(places) == len(PLOTS)
    assert places == sorted(places)
    top = lead.bounding_box()
    assert top is not None and top["y"] + top["height"] < boxes["differences"]["y"]
    # Optuna's own number comes after all of it, and says what it is
    assert best.bounding_box()["y"] > boxes["differences"]["y"]
    said = best.locator("h6").evaluate("each => getComputedStyle(each, '::after').content")
    assert "not the gain to expect" in said
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    size = page.locator("main").evaluate("each => each.scrollHeight")
    page.screenshot(path=screenshots / f"dashboard_study_{width}_{'dark' if dark else 'light'}_top.png")
    page.set_viewport_size({"width": width, "height": min(size + 100, 9000)})
    page.screenshot(path=screenshots / f"dashboard_study_{width}_{'dark' if dark else 'light'}.png")


def test_what_optuna_draws_as_well_is_there_once(opened: Any) -> None:
    page = study_page(opened)
    for double in ("#plot-history", "#graph-hyperparameter-importances", "#graph-intermediate-values"):
        assert page.locator(double).count() == 1
        assert not page.locator(double).is_visible()
    assert page.locator("#graph-timeline").is_visible()
    upload = page.get_by_text("Upload a New File")
    assert upload.count() == 1
    assert not upload.is_visible()


def test_plots_of_ours_follow_the_dashboard_into_the_dark_and_back(opened: Any) -> None:
    page = study_page(opened)
    assert brightness(page, PLOT.format("history")) > 200
    switch = page.locator("[data-testid^=Brightness]")
    switch.click(force=True)
    page.locator("html[data-tempopt=dark]").wait_for(timeout=PATIENCE)
    assert brightness(page, PLOT.format("history")) < 80
    switch.click(force=True)
    page.locator("html[data-tempopt=light]").wait_for(timeout=PATIENCE)
    assert brightness(page, PLOT.format("history")) > 200


@pytest.mark.parametrize("dark", [False, True])
def test_what_is_laid_over_the_page_keeps_nobody_out(opened: Any, dark: bool) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = study_page(opened, dark=dark)
    found = Axe().run(page, context=".tempopt-lead")
    assert not found.response["violations"], found.generate_report()


def test_the_verdict_goes_where_the_reader_goes(opened: Any) -> None:
    page = study_page(opened)
    page.locator("header a[href^='/dashboard']").click()
    page.locator(".tempopt-line").first.wait_for(timeout=PATIENCE)
    assert page.locator(".tempopt-lead").count() == 0
    page.get_by_role("link", name="early").click()
    page.get_by_text("No verdict yet", exact=True).wait_for(timeout=PATIENCE)
    assert page.locator(".tempopt-lead").count() == 1
