"""What holds for every test: one thread, no storage from outside, examples that are the same each time."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# Derandomised, so that what passes here passes everywhere; no deadline, since machines differ.
settings.register_profile("house", deadline=None, derandomize=True, database=None)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TEMPOPT_")]:
        monkeypatch.delenv(name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested, and how to have it tested, where nobody can overlook it."""
    skipped = (report.longrepr for report in terminalreporter.getreports("skipped"))
    reasons = {why[2].removeprefix("Skipped: ") for why in skipped if isinstance(why, tuple)}
    for reason in sorted(reason for reason in reasons if reason.startswith("NOT TESTED")):
        terminalreporter.write_line(reason, red=True, bold=True)
