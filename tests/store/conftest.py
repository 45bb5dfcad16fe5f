"""Databases for the store's tests: SQLite always, PostgreSQL and MariaDB where a server answers."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from tempopt.store import Store, StudyRow

SERVERS = {
    "postgresql": "postgresql+psycopg://postgres@127.0.0.1:5432/test",
    "mariadb": "mysql+pymysql://root@127.0.0.1:3306/test",
}
BACKENDS = ("sqlite", *SERVERS)
_COUNT = itertools.count()


def _execute(url: str, statement: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(statement))
    finally:
        engine.dispose()


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Environment of a child process that is to find what this one finds, installed or not."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(scope="session")
def servers_that_answer() -> dict[str, str]:
    """Why a server cannot be used, by backend; the empty text for one that can."""
    answers = {}
    for backend, url in SERVERS.items():
        try:
            _execute(url, "SELECT 1")
            answers[backend] = ""
        except (ImportError, OperationalError) as error:
            why = " ".join(str(error.orig if isinstance(error, OperationalError) else error).split())
            answers[backend] = (
                f"NOT TESTED on {backend}: no use of {make_url(url).render_as_string()} ({why}). "
                "Start a server there and install the drivers: pip install tempopt[postgresql,mysql]"
            )
    return answers


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, servers_that_answer: dict[str, str]) -> str:
    name: str = request.param
    if servers_that_answer.get(name):
        pytest.skip(servers_that_answer[name])
    return name


@pytest.fixture
def url(backend: str, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path / 'tempopt.db'}"
        return
    server, name = SERVERS[backend], f"tempopt_test_{os.getpid()}_{next(_COUNT)}"
    _execute(server, f"CREATE DATABASE {name}")
    try:
        yield make_url(server).set(database=name).render_as_string()
    finally:
        _execute(server, f"DROP DATABASE {name}{' WITH (FORCE)' if backend == 'postgresql' else ''}")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


@pytest.fixture
def study(store: Store) -> StudyRow:
    return store.create_study("example", {"study": {"name": "example"}}, "0" * 64)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested, and how to have it tested, where nobody can overlook it."""
    skipped = (report.longrepr for report in terminalreporter.getreports("skipped"))
    reasons = {why[2].removeprefix("Skipped: ") for why in skipped if isinstance(why, tuple)}
    for reason in sorted(reason for reason in reasons if reason.startswith("NOT TESTED")):
        terminalreporter.write_line(reason, red=True, bold=True)
