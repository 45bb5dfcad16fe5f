"""The pages in a browser: on a phone and on a desk, in light and dark, by keyboard, while things change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.server.app import create_app
from tempopt.server.tokens import made
from tempopt.store import Store
from tests.server.conftest import Served, listening
from tests.server.pages.browsing import PATIENCE, wait_until
from tests.server.pages.made_studies import fill_pool

pytestmark = pytest.mark.browser
PAGES = {
    "studies": "/",
    "study-done": "/studies/pairs",
    "study-running": "/studies/searching",
    "study-losing": "/studies/losing",
    "run": "/studies/pairs/runs/search-3",
    "run-failed": "/studies/losing/runs/search-0",
    "pool": "/pool",
    "submit": "/submit",
    "refused": "/studies/nobody",
    "reference": "/docs",
}
_ALL_DRAWN = """() => [...document.querySelectorAll("[data-plot]")]
    .filter((each) => each.dataset.asked && !each.hidden && !each.dataset.drawn)
    .every((each) => each.querySelector("figcaption").textContent)"""


@pytest.fixture(scope="module")
def site(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with studies and a pool, for all tests here."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(filled, folder / "studies.db")
    storage = f"sqlite:///{folder / 'studies.db'}"
    with Store.open(storage) as store:
        fill_pool(store)
        app = create_app(store, checkpoints=(folder / "checkpoints").as_uri())
        token, _ = made(store, name="ada", scopes=["admin"])
        with listening(app) as url:
            yield Served(url=url, storage=storage, store=store, checkpoints=folder, app=app, token=token)


class Visit:
    """Somebody at a browser; whatever its console complains of, and whatever it asks of others, is kept."""

    def __init__(self, browser: Any, site: Served, width: int, scheme: str) -> None:
        self.site = site
        self.wrong: list[str] = []
        self._context = browser.new_context(
            viewport={"width": width, "height": 850},
            color_scheme=scheme,
            reduced_motion="reduce",
            base_url=site.url,
        )
        self._context.set_default_timeout(PATIENCE)
        self.page = self._context.new_page()
        self.page.on("console", lambda said: self._told(said.type, said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"a dialog: {dialog.message}"))
        self.page.on("request", lambda request: self._asked(request.url))

    def _told(self, kind: str, text: str) -> None:
        # that a page is not there is said in the console as well
        if kind in ("error", "warning") and "status of 404" not in text and "status of 401" not in text:
            self.wrong.append(text)

    def _asked(self, address: str) -> None:
        if not address.startswith((self.site.url, "data:", "blob:")):
            self.wrong.append(f"asks {address}")

    def sign_in(self, token: str = "") -> Any:
        """Sign in, and return the browser's page."""
        self.page.goto("/sign-in")
        self.page.get_by_label("Token").fill(token or self.site.token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("heading", name="Studies", exact=True).wait_for()
        return self.page

    def close(self) -> None:
        self._context.close()


@pytest.fixture
def visit(browser: Any, site: Served) -> Iterator[Any]:
    """Opens a browser of some width and scheme; the test fails at any error in its console."""
    open_: list[Visit] = []

    def opened(width: int = 1280, scheme: str = "light") -> Visit:
        open_.append(Visit(browser, site, width, scheme))
        return open_[-1]

    yield opened
    for each in open_:
        each.close()
    assert not [text for each in open_ for text in each.wrong]


@pytest.fixture(scope="module")
def signed_in(browser: Any, site: Served) -> Iterator[Any]:
    """Returns somebody who is signed in at a browser of some width and scheme, whom tests share."""
    known: dict[tuple[int, str], Visit] = {}

    def found(width: int, scheme: str) -> Visit:
        if (width, scheme) not in known:
            known[width, scheme] = Visit(browser, site, width, scheme)
            known[width, scheme].sign_in()
        return known[width, scheme]

    yield found
    for each in known.values():
        each.close()


def _violations(page: Any) -> str:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page)
    return found.generate_report() if found.response["violations"] else ""


def _drawn(page: Any) -> None:
    """Wait until the plots that are in view are drawn, or say why they are not."""
    wait_until(page, _ALL_DRAWN)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_every_page_fits_and_keeps_nobody_out(
    signed_in: Any, screenshots: Path, name: str, width: int, scheme: str
) -> None:
    somebody = signed_in(width, scheme)
    page, before = somebody.page, len(somebody.wrong)
    page.goto(PAGES[name])
    if name == "studies":
        page.get_by_text("Gain shown", exact=True).wait_for(timeout=PATIENCE)
    _drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelectorAll('details:not(.more)').forEach((each) => { each.open = true; })")
    assert not _violations(page)
    assert page.locator("h1").count() == 1
    path = screenshots / f"page-{name}-{width}-{scheme}.png"
    page.screenshot(path=path, full_page=True)
    assert path.stat().st_size > 5000
    assert not somebody.wrong[before:]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_form_that_asks_for_a_token_says_what_is_wrong_with_one(
    visit: Any, screenshots: Path, width: int, scheme: str
) -> None:
    page = visit(width, scheme).page
    page.goto("/studies/pairs")
    assert not _violations(page)
    assert page.evaluate("document.activeElement.id") == "token"
    page.keyboard.type("tempopt_nonsense")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    assert "does not know" in page.get_by_role("alert").text_content()
    assert not _violations(page)
    page.screenshot(path=screenshots / f"page-sign-in-{width}-{scheme}.png")


def test_signing_in_leads_on_and_signing_out_leads_back(visit: Any, site: Served) -> None:
    page = visit().page
    page.goto("/studies/pairs")
    page.locator("input:focus").wait_for()
    page.keyboard.type(site.token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Gain shown").wait_for()
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    page.goto("/")
    assert page.get_by_role("heading", name="Sign in").count() == 1


def test_plots_are_drawn_with_marks_and_follow_the_reader_into_the_dark(visit: Any) -> None:
    page = visit().sign_in()
    page.goto("/studies/pairs")
    _drawn(page)
    history = page.locator('[data-plot$="/history"]')
    assert history.locator(".points path").count() >= 38
    ink = "getComputedStyle(document.querySelector('[data-plot$=\"/history\"] .xtitle')).fill"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    wait_until(page, f"() => {ink} !== '{light}'")
    assert page.locator(".more [data-plot]").first.get_attribute("data-asked") is None
    page.locator(".more > summary").click()
    page.locator(".more [data-plot] .main-svg").first.wait_for(timeout=PATIENCE)


def test_what_is_typed_filters_and_the_address_says_it(visit: Any) -> None:
    page = visit().sign_in()
    rows = page.locator("tbody tr")
    everything = rows.count()
    page.get_by_label("Search").focus()
    page.keyboard.type("grace")
    wait_until(page, "() => document.querySelectorAll('tbody tr').length === 2")
    assert "q=grace" in page.url
    assert page.evaluate("document.activeElement.id") == "q"
    wait_until(page, "() => document.getElementById('said').textContent === '2 studies found'")
    page.get_by_label("State").select_option("done")
    wait_until(page, "() => document.querySelectorAll('tbody tr').length === 1")
    page.reload()
    assert page.get_by_label("Search").input_value() == "grace" and rows.count() == 1
    page.goto("/")
    assert rows.count() == everything


def test_a_page_is_used_from_the_keyboard_alone(visit: Any) -> None:
    page = visit().sign_in()
    page.goto("/studies/pairs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Studies"
    page.locator("#statements > summary").focus()
    page.keyboard.press("Enter")
    assert page.get_by_text("cost:").is_visible()
    table = page.get_by_role("region", name="Table of runs")
    table.focus()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Table of runs"


def test_a_study_that_changes_is_told_without_loading_the_page_again(visit: Any, site: Served) -> None:
    page = visit().sign_in()
    page.goto("/studies/a.very-long_name.of-a-study.that-somebody.has-chosen.with-care_2026-11-27")
    page.evaluate("window.same = true")
    button = page.get_by_role("button", name="Resume")
    button.focus()
    study = site.store.load_study(page.locator("h1").text_content())
    site.store.set_state(study.id, "running")
    page.locator("#standing .state.waiting").wait_for(timeout=PATIENCE)
    wait_until(page, "() => document.getElementById('said').textContent === 'The study is waiting.'")
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("The study pauses").wait_for()
    assert site.store.load_study(study.name).state == "paused"
    page.goto(f"/studies/{study.name}")
    page.evaluate("window.same = true")
    site.store.set_state(study.id, "running")
    page.locator("#standing .state.waiting").wait_for(timeout=PATIENCE)
    assert page.evaluate("window.same")
    site.store.set_state(study.id, "paused")


def test_a_study_is_deleted_once_its_name_is_typed_and_others_are_told(visit: Any, site: Served) -> None:
    site.store.create_study("doomed", site.store.load_study("searching").spec, "0")
    other = visit().sign_in()
    other.goto("/studies/doomed")
    page = visit().sign_in()
    page.goto("/studies/doomed")
    button = page.get_by_role("button", name="Delete")
    assert button.is_disabled()
    page.get_by_label("Delete the study").fill("doome")
    assert button.is_disabled()
    page.get_by_label("Delete the study").fill("doomed")
    button.click()
    page.get_by_role("heading", name="Studies", exact=True).wait_for()
    assert page.get_by_role("link", name="doomed").count() == 0
    other.get_by_text("The study was deleted.").wait_for(timeout=PATIENCE)


def test_whoever_was_signed_out_elsewhere_is_told_so(visit: Any, site: Served) -> None:
    token, row = made(site.store, name="other", scopes=["view"])
    page = visit().sign_in(token)
    site.store.revoke_token(row.id)
    page.get_by_text("You are signed out.").wait_for(timeout=PATIENCE)
    assert page.get_by_role("link", name="Sign in").get_attribute("href") == "/sign-in?then=%2F"


def test_without_scripts_a_page_says_the_same(browser: Any, site: Served) -> None:
    context = browser.new_context(java_script_enabled=False, base_url=site.url)
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Token").fill(site.token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Search").fill("grace")
    page.get_by_role("button", name="Filter").click()
    assert page.locator("tbody tr").count() == 2
    page.goto("/studies/pairs?stage=confirm")
    assert page.get_by_role("heading", name="Gain shown").is_visible()
    assert page.get_by_role("link", name="confirm-0").is_visible()
    context.close()
