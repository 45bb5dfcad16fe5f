"""What a person is told when a database cannot be had, and what is tried again."""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from urllib.parse import quote

import pytest
from sqlalchemy import text

from tempopt.errors import StorageError, StoreUnreachable
from tempopt.storage.database import Database
from tempopt.storage.opening import open_store
from tempopt.storage.urls import parse_database_url
from tests.servers import Server

# Where transactions meet and connections are lost: a file has neither.
SERVERS = ("postgresql", "mariadb")
PASSWORD = "p@ss:w/rd"
ENCODED = quote(PASSWORD, safe="")


@pytest.mark.parametrize(
    ("package", "scheme", "requirement"),
    [("psycopg", "postgresql", r"psycopg\[binary\]"), ("pymysql", "mysql", "pymysql")],
)
def test_a_driver_that_is_not_installed_is_named_with_the_command_that_installs_it(
    package: str, scheme: str, requirement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing: dict[str, ModuleType | None] = {package: None}
    for name, module in missing.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(StorageError, match=f"pip install '{requirement}") as error:
        open_store(f"{scheme}://me:{ENCODED}@host/d")
    assert PASSWORD not in str(error.value)
    assert package in str(error.value)


@pytest.mark.parametrize(
    ("package", "scheme", "driver_message", "advice"),
    [
        (
            "psycopg",
            "postgresql",
            f'password authentication failed for "me" ({PASSWORD})',
            "Check the user name",
        ),
        ("psycopg", "postgresql", f'bad dsn "postgresql://me:{ENCODED}@h/d"', ""),
        ("psycopg", "postgresql", 'FATAL: database "d" does not exist', "Create the database first"),
        ("pymysql", "mysql", f"Access denied for user 'me' using {PASSWORD!r}", "Check the user name"),
        ("pymysql", "mysql", "Unknown database 'd'", "Create the database first"),
    ],
)
def test_what_a_driver_says_is_told_with_advice_and_without_the_password(
    package: str, scheme: str, driver_message: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = pytest.importorskip(package)

    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise driver.OperationalError(driver_message)

    monkeypatch.setattr(driver.Connection, "connect", refuse)
    monkeypatch.setattr(driver, "connect", refuse)
    with pytest.raises(StorageError, match=rf"{scheme}://me:\*\*\*@h/d failed") as error:
        open_store(f"{scheme}://me:{ENCODED}@h/d")
    trace_text = "".join(traceback.format_exception(error.value))
    assert advice in trace_text
    assert PASSWORD not in trace_text
    assert ENCODED not in trace_text


@pytest.mark.parametrize("backend", ["mariadb"], indirect=True)
def test_a_password_with_every_sign_opens_a_real_server_and_a_wrong_one_is_told(
    server: Server, url: str
) -> None:
    user = f"tempopt_{os.getpid()}"
    server.execute(f"CREATE USER {user}@'%' IDENTIFIED BY '{PASSWORD}'")
    try:
        server.execute(f"GRANT ALL ON *.* TO {user}@'%'")
        server_address = url.partition("@")[2]
        with open_store(f"mysql://{user}:{ENCODED}@{server_address}") as store:
            assert store.list_studies() == []
            assert store.masked_url == f"mysql://{user}:***@{server_address}"
        wrong_password = f"{PASSWORD}!"
        with pytest.raises(StorageError, match=r"Access denied.*Check the user name and the pass") as error:
            open_store(f"mysql://{user}:{quote(wrong_password, safe='')}@{server_address}")
        assert not isinstance(error.value, StoreUnreachable)
        assert PASSWORD not in "".join(traceback.format_exception(error.value))
    finally:
        server.execute(f"DROP USER {user}@'%'")


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_a_database_that_is_not_on_the_server_is_told(url: str) -> None:
    with pytest.raises(StorageError, match="Create the database first") as error:
        open_store(url + "_that_is_not_there")
    assert not isinstance(error.value, StoreUnreachable)


def test_a_failing_statement_does_not_repeat_what_was_to_be_written(url: str) -> None:
    """SQLAlchemy's own text lists the parameters of the statement: a whole spec, or worse."""
    statement = text("INSERT INTO nowhere VALUES (:x)")
    database, parameter = Database(parse_database_url(url)), " ".join(["do", "not", "repeat"])
    with pytest.raises(StorageError, match="nowhere") as error:
        database.write(lambda c: c.execute(statement, {"x": parameter}))
    database.close()
    assert parameter not in "".join(traceback.format_exception(error.value))


def test_a_store_shows_its_url_without_the_password(url: str) -> None:
    with open_store(url) as store:
        assert repr(store) == f"Store('{store.masked_url}')"
        assert parse_database_url(store.url).url == parse_database_url(url).url


# ---- SQLite's files


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    file.write_text("study:\n  name: example\n" * 100)
    for create in (True, False):
        with pytest.raises(StorageError, match=r"not a database.*Give another path"):
            open_store(str(file), create=create)
    assert file.read_text().startswith("study:")


def test_a_missing_file_is_refused_and_not_made_where_a_store_must_be(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"There is no file .*x\.db.*--storage"):
        open_store(str(tmp_path / "x.db"), create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def locked_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that may be read and not written, with the rights of a user for whom that holds."""
    open_store(str(tmp_path / "elsewhere.db")).close()  # loads what the powerless could not
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        open_store(str(folder / "there.db")).close()
        folder.chmod(0o555)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o755)


def test_a_folder_in_which_nothing_can_be_written_is_told(locked_folder: Path) -> None:
    message = "a folder that exists and in which files can be written"
    with pytest.raises(StorageError, match=message):
        open_store(str(locked_folder / "new.db"))
    # what is there can be read
    with open_store(str(locked_folder / "there.db")) as store:
        assert store.list_studies() == []
        with pytest.raises(StorageError, match=message):
            store.create_study("example", {}, "")


def test_a_database_that_stays_locked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempopt.storage.engines.BUSY_SECONDS", 0.01)
    monkeypatch.setattr("tempopt.storage.database._MAX_LOCK_SECONDS", 0.05)
    file = tmp_path / "x.db"
    with open_store(str(file)) as store, closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match=r"locked.*Another program holds the database"):
            store.create_study("example", {}, "")


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_work_that_met_a_deadlock_is_done_again(url: str) -> None:
    """Two transactions that lock two rows in opposite order: the server kills one, which then succeeds."""
    database = Database(parse_database_url(url))
    database.write(lambda c: c.execute(text("CREATE TABLE pair (id INTEGER PRIMARY KEY, n INTEGER)")))
    database.write(lambda c: c.execute(text("INSERT INTO pair VALUES (1, 0), (2, 0)")))
    meeting = threading.Barrier(2)
    tries: list[int] = []

    def update_pair(first: int, second: int) -> None:
        def work(connection: Any) -> None:
            tries.append(first)
            add = text("UPDATE pair SET n = n + 1 WHERE id = :id")
            connection.execute(add, {"id": first})
            if len(tries) <= 2:
                meeting.wait(timeout=20)
            connection.execute(add, {"id": second})

        database.write(work)

    threads = [threading.Thread(target=update_pair, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = database.read(lambda c: c.execute(text("SELECT n FROM pair ORDER BY id")).scalars().all())
    database.close()
    assert counts == [2, 2]
    assert len(tries) == 3


@pytest.mark.parametrize("fate", ["deleted", "replaced"])
def test_a_file_that_is_taken_away_is_missed_at_once(tmp_path: Path, fate: str) -> None:
    path = tmp_path / "tempopt.db"
    with open_store(f"sqlite:///{path}") as store:
        study = store.create_study("example", {}, "0" * 64)
        for file in tmp_path.iterdir():
            file.unlink()
        if fate == "replaced":
            open_store(f"sqlite:///{path}").close()
        with pytest.raises(StorageError, match=r"tempopt\.db was deleted or replaced"):
            store.set_state(study.id, "paused")
        with pytest.raises(StorageError, match=r"tempopt\.db was deleted or replaced"):
            store.load_study("example")


@pytest.mark.parametrize(
    ("folder", "statements", "kind", "message"),
    [
        ("", ["PRAGMA max_page_count = 1", "CREATE TABLE a (b)"], StoreUnreachable, "full.*Free some space"),
        ("", ["PRAGMA query_only = ON", "CREATE TABLE a (b)"], StoreUnreachable, "files can be written"),
        ("no folder/", ["SELECT 1"], StoreUnreachable, "unable to open.*a folder that exists"),
        ("", ["SELECT * FROM elsewhere"], StorageError, "no such table"),
    ],
)
def test_a_disk_that_refuses_sqlite_is_an_outage_and_a_mistake_is_none(
    folder: str, statements: list[str], kind: type[StorageError], message: str, tmp_path: Path
) -> None:
    database = Database(parse_database_url(f"sqlite:///{tmp_path}/{folder}tempopt.db"))
    with pytest.raises(StorageError, match=message) as error:
        database.write(lambda c: [c.exec_driver_sql(statement) for statement in statements])
    assert type(error.value) is kind
    database.close()


def test_a_database_whose_folder_is_closed_for_a_while_was_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(parse_database_url(f"sqlite:///{tmp_path}/tempopt.db"))
    database.write(lambda connection: connection.exec_driver_sql("CREATE TABLE more (text)"))

    def raise_closed(path: Path, **options: Any) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", raise_closed)
        database.write(lambda connection: connection.exec_driver_sql("INSERT INTO more VALUES ('kept')"))
    rows = database.read(lambda connection: connection.exec_driver_sql("SELECT * FROM more").all())
    assert rows == [("kept",)]
    database.close()
