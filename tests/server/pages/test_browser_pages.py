"""The two pages in a browser: narrow and wide, light and dark, by keyboard, and while a study changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tempopt.server.pages import routes
from tempopt.server.tokens import create_token
from tests.server.http_server import RunningServer

pytestmark = pytest.mark.browser
PATIENCE = 120_000
"""Milliseconds that a page may take on a slow and busy machine."""
PAGES = {
    "studies": "/",
    "study-done": "/studies/pairs",
    "study-running": "/studies/searching",
    "study-losing": "/studies/losing",
    "refused": "/studies/missing",
}
_PLOTS_READY = (
    "document.querySelector('[data-plot]') === null || document.documentElement.dataset.drawn === 'all'"
)


@contextmanager
def open_page(
    browser: Any, site: RunningServer, *, width: int = 1280, scheme: str = "light", scripts: bool = True
) -> Iterator[Any]:
    """Yield a page of a browser; errors in its console and requests to other servers fail the test."""
    faults: list[str] = []
    context = browser.new_context(
        viewport={"width": width, "height": 850},
        color_scheme=scheme,
        reduced_motion="reduce",
        base_url=site.url,
        java_script_enabled=scripts,
    )
    context.set_default_timeout(PATIENCE)
    page = context.new_page()

    def on_console(message: Any) -> None:
        if message.type in ("error", "warning") and "status of 4" not in message.text:
            faults.append(message.text)

    def on_request(request: Any) -> None:
        if not request.url.startswith((site.url, "data:", "blob:")):
            faults.append(f"requests {request.url}")

    page.on("console", on_console)
    page.on("request", on_request)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    try:
        yield page
    finally:
        context.close()
    assert not faults


def sign_in(page: Any, token: str) -> None:
    """Sign in with the form."""
    page.goto("/sign-in")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Studies", exact=True).wait_for()


def wait_until(page: Any, condition: str) -> None:
    """Wait until a JavaScript expression is true; `wait_for_function` evaluates text, which pages forbid."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"never true: {condition}"
        page.wait_for_timeout(50)


def violations(page: Any) -> str:
    """Return what axe finds wrong with the page; empty: nothing."""
    from axe_playwright_python.sync_playwright import Axe

    result = Axe().run(page)
    return str(result.generate_report()) if result.response["violations"] else ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_and_is_accessible(
    browser: Any, site: RunningServer, screenshots: Path, width: int, scheme: str
) -> None:
    with open_page(browser, site, width=width, scheme=scheme) as page:
        page.goto("/")
        assert not violations(page), "the form to sign in"
        page.screenshot(path=screenshots / f"page-sign-in-{width}-{scheme}.png")
        sign_in(page, site.token)
        for name, path in PAGES.items():
            page.goto(path)
            wait_until(page, _PLOTS_READY)
            page.screenshot(path=screenshots / f"page-{name}-{width}-{scheme}.png", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert page.locator("h1").count() == 1, name
            page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            assert not violations(page), name


def test_a_person_signs_in_reads_and_signs_out_by_keyboard(browser: Any, site: RunningServer) -> None:
    with open_page(browser, site) as page:
        page.goto("/studies/pairs")
        page.locator("input:focus").wait_for()
        page.keyboard.type("tempopt_nonsense")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("does not know").wait_for()
        page.locator("input:focus").wait_for()
        page.keyboard.type(site.token)
        page.keyboard.press("Enter")
        page.get_by_text("Gain shown").first.wait_for()
        assert page.evaluate("document.cookie") == ""
        page.keyboard.press("Tab")
        assert "Skip" in page.evaluate("document.activeElement.textContent")
        page.get_by_role("link", name="All studies").click()
        page.get_by_role("heading", name="Studies", exact=True).wait_for()
        page.get_by_role("link", name="pairs").click()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("heading", name="Sign in").wait_for()
        page.goto("/")
        assert page.get_by_role("heading", name="Sign in").count() == 1


def test_the_page_of_a_study_follows_its_changes(
    browser: Any, site: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "REFRESH_SECONDS", 1)
    study = site.store.load_study("losing")
    site.store.set_state(study.id, "running")
    with open_page(browser, site) as page:
        sign_in(page, site.token)
        page.goto("/studies/losing")
        wait_until(page, _PLOTS_READY)
        page.evaluate("window.same = true")
        page.evaluate("window.before = document.querySelector('main').textContent")
        _change_value(site, study.id)
        # The mean of the baseline changes.
        wait_until(page, "document.querySelector('main').textContent !== window.before")
        assert page.evaluate("window.same"), "the page was replaced in place"


_VALUE = 0.98765


def _change_value(site: RunningServer, study_id: int) -> None:
    from sqlalchemy import create_engine, update

    from tempopt.storage.models import TICKET

    engine = create_engine(site.storage)
    with engine.begin() as connection:
        ids = [row.id for row in site.store.tickets(study_id) if row.outcome == "complete"]
        values = {"value": _VALUE, "attempt": TICKET.c.attempt + 1}
        connection.execute(update(TICKET).where(TICKET.c.id == ids[0]).values(values))
    engine.dispose()


def test_the_list_follows_changes_and_a_session_that_ends(
    browser: Any, site: RunningServer, made_token: Callable[[], tuple[str, str]]
) -> None:
    token, id = made_token()
    with open_page(browser, site) as page:
        sign_in(page, token)
        page.evaluate("document.querySelector('[data-live]').dataset.live = '1'")
        site.store.revoke_token(id)
        page.get_by_role("heading", name="Sign in").wait_for()


@pytest.fixture
def made_token(site: RunningServer) -> Callable[[], tuple[str, str]]:
    """Return a function that makes a token and returns it with its id."""

    def make() -> tuple[str, str]:
        token, row = create_token(site.store, name="other", scopes=["view"])
        return token, row.id

    return make


def test_without_scripts_the_pages_say_the_same(browser: Any, site: RunningServer) -> None:
    with open_page(browser, site, scripts=False) as page:
        sign_in(page, site.token)
        page.get_by_role("searchbox").fill("grace")
        page.get_by_role("button", name="Filter").click()
        assert page.locator("tbody tr").count() == 2
        page.goto("/studies/pairs")
        assert page.get_by_text("Gain shown").first.is_visible()
