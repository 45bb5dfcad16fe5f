"""Databases for the store's tests: SQLite always, PostgreSQL and MariaDB where a server can be had."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
from sqlalchemy import Engine, event

from tempopt.storage import Store
from tempopt.storage.opening import open_store
from tempopt.storage.rows import StudyRow
from tests.servers import PrivateServer, Server, find_or_start, start_private, why_not

BACKENDS = ("sqlite", "postgresql", "mariadb")
_COUNT = itertools.count()


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Environment of a child process that is to find what this one finds, installed or not."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def server(backend: str) -> Server:
    """The server of a backend that has one."""
    running_server, why_not = find_or_start(backend)
    if running_server is None:
        pytest.skip(why_not)
    return running_server


@pytest.fixture(scope="module")
def private_servers() -> Iterator[Callable[[str], PrivateServer]]:
    """Servers that may be killed: no other test uses them."""
    servers: dict[str, PrivateServer] = {}

    def start(backend: str) -> PrivateServer:
        if reason := why_not(backend):
            pytest.skip(reason)
        if backend not in servers:
            servers[backend] = start_private(backend)
            servers[backend].create_database("test")
        return servers[backend]

    yield start
    for server in servers.values():
        server.remove()


@pytest.fixture
def private(backend: str, private_servers: Callable[[str], PrivateServer]) -> PrivateServer:
    return private_servers(backend)


@pytest.fixture
def new_url(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Makes an empty database of the test's own and returns its URL."""
    server: Server | None = None if backend == "sqlite" else request.getfixturevalue("server")
    database_names: list[str] = []

    def make() -> str:
        name = f"tempopt_test_{os.getpid()}_{next(_COUNT)}"
        if server is None:
            return f"sqlite:///{tmp_path / name}.db"
        database_names.append(name)
        return server.create_database(name)

    yield make
    for name in database_names:
        assert server is not None
        server.drop_database(name)


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    """The URL of an empty database of the test's own."""
    return new_url()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as store:
        yield store


@pytest.fixture
def study(store: Store) -> StudyRow:
    return store.create_study("example", {"study": {"name": "example"}}, "0" * 64)


@pytest.fixture
def storage(store: Store) -> Iterator[optuna.storages.RDBStorage]:
    """Optuna's own view of the store's database."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rdb_storage = optuna.storages.RDBStorage(store.url)
    yield rdb_storage
    rdb_storage.engine.dispose()
    optuna.logging.set_verbosity(verbosity)


@pytest.fixture
def optuna_study(storage: optuna.storages.RDBStorage, study: StudyRow) -> optuna.Study:
    """Optuna's study that belongs to ours."""
    return optuna.create_study(study_name=study.name, storage=storage)


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The SQL that was sent since the test began."""
    sent: list[str] = []

    def record(*arguments: object) -> None:
        sent.append(str(arguments[2]))

    event.listen(Engine, "before_cursor_execute", record)
    yield sent
    event.remove(Engine, "before_cursor_execute", record)
