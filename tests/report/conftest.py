"""Studies that every test of the report looks at, made once, and a browser where there is one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.results.study_result import StudyResult
from tests.report.made_study import World, make

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def confirmed() -> StudyResult:
    """A study that is over and has everything to show."""
    return make(World()).result()


@pytest.fixture(scope="session")
def searching() -> StudyResult:
    """A study whose search is done and of which nothing is confirmed."""
    return make(World(confirmed=False, study={"pruner": "none"})).result()


@pytest.fixture(scope="session")
def untouched() -> StudyResult:
    """A study of which no trial is over."""
    made = make(World(trials=1, confirmed=False))
    made.tickets.clear()
    made.measurements.clear()
    return made.result()


@pytest.fixture(scope="session")
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


# Read at import: no test sees settings of its surroundings.
_SCREENSHOTS = os.environ.get("TEMPOPT_SCREENSHOTS")
