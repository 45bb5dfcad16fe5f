"""What holds for every test: one thread, no storage from outside, examples that are the same each time."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

os.environ.setdefault("OMP_NUM_THREADS", "1")

import alembic.util
import pytest
from hypothesis import settings

_TESTS = Path(__file__).parent
# Workers of all tests are forked from one process only if they have the same PYTHONPATH.
os.environ["PYTHONPATH"] = f"{_TESTS / 'training'}{os.pathsep}{_TESTS.parent}"

# Imports and collection make millions of objects and free few, so that looking for garbage takes seconds.
gc.disable()

# Lightning reads the entry points of all packages for every Trainer.
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)

# Derandomised, so that what passes here passes everywhere; no deadline, since machines differ.
settings.register_profile("house", deadline=None, derandomize=True, database=None)
settings.load_profile("house")


# Tests that are started in the background ignore Ctrl-C, and so every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Return how many workers ``-n auto`` starts: two a core, since half of the time tests wait."""
    return 2 * (os.cpu_count() or 1)


pytest_plugins = ["tests.browser_fixtures", "tests.study_fixtures", "tests.training_fixtures"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage from here on, but not among what tests and libraries are made of."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _load_migrations_once() -> Iterator[None]:
    """Keep the modules of migrations, of which Alembic executes all whenever a storage is opened."""
    load = alembic.util.load_python_file
    load_once = functools.cache(load)

    def load_python_file(folder: str, name: str) -> ModuleType:
        return (load_once if Path(folder).name == "versions" else load)(folder, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alembic.util, "load_python_file", load_python_file)
        yield


@pytest.fixture(scope="session")
def _no_settings(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("settings"))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, _no_settings: str) -> None:
    for name in [name for name in os.environ if name.startswith("TEMPOPT_")]:
        monkeypatch.delenv(name)
    # the servers that the user has logged in to
    monkeypatch.setenv("XDG_CONFIG_HOME", _no_settings)


# Fixtures and parameters that only a machine with servers, their drivers or a browser can have.
_FIXTURES = {
    "a_slurm": "service",
    "browser": "browser",
    "cluster": "service",
    "machines": "service",
    "server": "service",
}
_PARTS = {"server": "server", "mcp_server": "server", "benchmarks": "benchmarks"}
"""Folders of tests that are in a tier of their own."""
_PARAMETERS = {"postgresql": "service", "mariadb": "service", "mysql": "service"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders of tiers that do not run: importing what they need takes seconds."""
    excluded = re.match(r"not \((.*)\)$", config.getoption("markexpr"))
    if excluded and collection_path.parent == _TESTS:
        return (collection_path.name in _PARTS and collection_path.name in excluded[1].split(" or ")) or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with their tier, by what they need or where they are, and give the long ones more time."""
    for item in items:
        for part in item.path.relative_to(_TESTS).parts[:-1]:
            if part in _PARTS:
                item.add_marker(_PARTS[part])
        if isinstance(item, pytest.Function):
            param_values = item.callspec.params.values() if hasattr(item, "callspec") else ()
            needs = [
                _PARAMETERS[value]
                for value in param_values
                if isinstance(value, str) and value in _PARAMETERS
            ]
            needs += [_FIXTURES[name] for name in item.fixturenames if name in _FIXTURES]
            for need in set(needs):
                item.add_marker(need)
            if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(1800))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested, and how to have it tested, where it cannot be overlooked."""
    skip_reports = (report.longrepr for report in terminalreporter.getreports("skipped"))
    reasons = {
        location[2].removeprefix("Skipped: ") for location in skip_reports if isinstance(location, tuple)
    }
    for reason in sorted(reason for reason in reasons if reason.startswith("NOT TESTED")):
        terminalreporter.write_line(reason, red=True, bold=True)
