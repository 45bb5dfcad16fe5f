"""The page on which a study is begun, in a browser: faults at their lines, the price, the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Served
from tests.server.pages.browsing import at_browser, wait_until
from tests.server.test_specs import TWO_FAULTS, text_of
from tests.toy_study import toy_spec

pytestmark = pytest.mark.browser
SELECTED = "[document.activeElement.id, text.value.slice(text.selectionStart, text.selectionEnd)]"


def marked(page: Any) -> list[str]:
    """Return the lines that are marked as wrong."""
    return [each.strip() for each in page.locator(".behind .line.error .ghost").all_text_contents()]


def test_faults_are_seen_at_their_lines_mended_priced_and_started(browser: Any, served: Served) -> None:
    with at_browser(browser, served) as page:
        page.get_by_role("link", name="Submit", exact=True).click()
        text = page.get_by_label("Study spec")
        text.fill(TWO_FAULTS)
        page.locator(".messages li").nth(1).wait_for()
        assert marked(page) == ["direction: sideways", "max_steps: none"]
        note = page.locator(".behind .line.error .note").first
        assert note.is_visible() and "maximize or minimize" in note.inner_text()
        assert text.get_attribute("aria-invalid") == "true"
        assert "2 faults" in page.locator("#said").inner_text()
        # the first fault has the focus, with its line selected
        page.get_by_role("button", name="Check").click()
        wait_until(page, f"{SELECTED}[1] === 'direction: sideways'")
        assert page.evaluate(SELECTED) == ["text", "direction: sideways"]
        page.get_by_role("link", name="Line 7").click()
        assert page.evaluate(SELECTED) == ["text", "max_steps: none"]
        # a mark is not left on a text that was not checked
        page.keyboard.type("max_steps: 24")
        page.locator(".messages li").nth(1).wait_for(state="detached")
        assert marked(page) == ["direction: sideways"]
        text.fill(TWO_FAULTS.replace("sideways", "minimize").replace("none", "24"))
        page.locator("#findings tr.all").wait_for()
        assert marked(page) == []
        assert "Give the seconds of one run" in page.locator("#rests-on").inner_text()
        page.get_by_label("Seconds of one run").fill("90")
        page.get_by_text("time on 1 worker").wait_for()
        page.get_by_label("Queue").fill("night")
        page.get_by_role("button", name="Start").click()
        page.wait_for_url("**/studies/two")
    study = served.store.load_study("two")
    assert (study.state, study.queue, study.owner) == ("running", "night", "admin")


def test_a_browser_without_scripts_does_the_same(browser: Any, served: Served) -> None:
    with at_browser(browser, served, scripts=False) as page:
        page.goto("/submit")
        page.get_by_label("Study spec").fill(TWO_FAULTS)
        page.get_by_role("button", name="Check").click()
        page.locator(".messages li").nth(1).wait_for()
        assert marked(page) == ["direction: sideways", "max_steps: none"]
        assert page.get_by_label("Study spec").input_value() == TWO_FAULTS
        page.get_by_label("Study spec").fill(text_of(toy_spec()))
        page.get_by_role("button", name="Start").click()
        page.wait_for_url("**/studies/toy")
    assert served.store.load_study("toy").state == "running"


def test_the_text_is_left_by_tab_and_the_page_is_used_by_keyboard_alone(browser: Any, served: Served) -> None:
    with at_browser(browser, served) as page:
        page.goto("/submit")
        page.get_by_label("Study spec").focus()
        page.keyboard.insert_text(text_of(toy_spec()))
        reached = []
        for _ in range(12):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
            if reached[-1] == "start":
                break
        assert [each for each in reached if each in ("queue", "priority", "seconds", "workers", "check")] == [
            *("queue", "priority", "seconds", "workers", "check")
        ]
        assert "\t" not in page.get_by_label("Study spec").input_value()
        page.keyboard.press("Enter")
        page.wait_for_url("**/studies/toy")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_faults_and_price_fit_and_keep_nobody_out(
    browser: Any, served: Served, screenshots: Path, width: int, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    right = text_of(toy_spec(direction="maximize"))
    for name, text, shown in (("faults", TWO_FAULTS, ".messages li"), ("price", right, "#findings tr.cost")):
        with at_browser(browser, served, width=width, scheme=scheme) as page:
            page.goto("/submit")
            page.get_by_label("Seconds of one run").fill("90")
            page.get_by_label("Study spec").fill(text)
            page.locator(shown).first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            found = Axe().run(page)
            assert not found.response["violations"], found.generate_report()
            page.screenshot(path=screenshots / f"submit-{name}-{width}-{scheme}.png", full_page=True)
