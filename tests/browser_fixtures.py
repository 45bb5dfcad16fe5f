"""A browser where there is one, for every test of pages, and where its pictures go."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Read at import: no test sees settings of its surroundings.
_SCREENSHOTS = os.environ.get("TEMPOPT_SCREENSHOTS")


# For a module, not a session: while Playwright is started, nothing else in its thread can run an event loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright."""
    if _CHROMIUM is None:
        pytest.skip("NOT TESTED: pages in a browser. Install Chromium (Debian: apt install chromium).")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where pictures go: TEMPOPT_SCREENSHOTS, for people to look at, else away with the test."""
    folder = Path(_SCREENSHOTS or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
