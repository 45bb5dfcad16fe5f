"""Somebody at a browser; whatever its console complains of fails the test that looks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.server.conftest import Served

PATIENCE = 120_000
"""Milliseconds that a page may take on a slow and busy machine."""


@contextmanager
def at_browser(
    browser: Any,
    served: Served,
    *,
    token: str = "",
    width: int = 1280,
    scheme: str = "light",
    scripts: bool = True,
) -> Iterator[Any]:
    """Yield the page of a browser in which somebody has signed in."""
    wrong: list[str] = []
    context = browser.new_context(
        viewport={"width": width, "height": 850},
        color_scheme=scheme,
        reduced_motion="reduce",
        base_url=served.url,
        java_script_enabled=scripts,
        accept_downloads=True,
    )
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.on("console", lambda said: _told(wrong, said.type, said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    try:
        page.goto("/sign-in")
        page.get_by_label("Token").fill(token or served.token)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Studies", exact=True).wait_for()
        yield page
    finally:
        context.close()
    assert not wrong


def wait_until(page: Any, condition: str, arg: Any = None) -> None:
    """Wait until a JavaScript expression, or function of `arg`, is true.

    Playwright's `wait_for_function` evaluates the text within the page, which the pages' policy forbids.
    """
    from playwright.sync_api import Error

    def holds() -> bool:
        try:
            return bool(page.evaluate(condition, arg))
        except Error as error:
            if "context was destroyed" not in str(error):  # the page was left for another
                raise
            return False

    deadline = time.monotonic() + PATIENCE / 1000
    while not holds():
        assert time.monotonic() < deadline, f"never true: {condition}"
        page.wait_for_timeout(50)


def _told(wrong: list[str], kind: str, text: str) -> None:
    # what a form was refused for is told on the page
    if kind in ("error", "warning") and "status of 4" not in text:
        wrong.append(text)
