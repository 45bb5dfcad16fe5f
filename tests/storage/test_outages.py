"""A database that goes away for a while is told apart from one that is wrong, and is found again."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from tempopt.errors import StorageError, StoreUnreachable
from tempopt.storage.database_errors import classify_error, raise_storage_error
from tempopt.storage.opening import open_store
from tempopt.storage.urls import parse_database_url
from tests.servers import PrivateServer

SERVERS = ("postgresql", "mariadb")
pytestmark = pytest.mark.parametrize("backend", SERVERS, indirect=True)


def own_id(connection: Connection) -> int:
    """Return the number by which the server knows this connection."""
    query = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
    return int(connection.scalar(text(query[connection.dialect.name])) or 0)


def cut_off(server: Any, connection_id: int) -> None:
    """End a connection as an administrator does."""
    is_postgresql = server.base.startswith("postgresql")
    server.execute(
        f"SELECT pg_terminate_backend({connection_id})" if is_postgresql else f"KILL {connection_id}"
    )


def test_a_store_works_again_when_a_killed_server_is_back(private: PrivateServer) -> None:
    with open_store(private.url("test")) as store:
        study = store.create_study("example", {}, "")
        private.kill()
        for call in (store.list_studies, lambda: store.set_state(study.id, "paused")):
            with pytest.raises(StoreUnreachable, match="Check that the server is running"):
                call()
        with pytest.raises(StoreUnreachable):
            open_store(private.url("test"))
        private.start()
        store.set_state(study.id, "paused")
        assert store.load_study("example").state == "paused"
        store.delete_study("example")


def test_a_server_that_goes_away_within_a_transaction_leaves_nothing_half_written(
    private: PrivateServer,
) -> None:
    with open_store(private.url("test")) as store:
        study = store.create_study("example", {}, "")

        def work(connection: Connection) -> None:
            connection.execute(text("UPDATE tempopt_study SET state = 'done'"))
            private.restart()
            connection.execute(text("UPDATE tempopt_study SET state = 'paused'"))

        with pytest.raises(StoreUnreachable):
            store._database.write(work)
        assert store.load_study("example") == study
        store.delete_study("example")


def test_a_connection_that_an_administrator_ended_is_an_outage_and_is_replaced(server: Any, url: str) -> None:
    tries: list[int] = []

    def work(connection: Connection) -> None:
        tries.append(own_id(connection))
        cut_off(server, tries[-1])
        connection.execute(text("SELECT 1"))

    with open_store(url) as store:
        for run in (store._database.write, store._database.read):
            with pytest.raises(StoreUnreachable):
                run(work)
        assert store.list_studies() == []
    assert len(tries) == 2


def test_who_sleeps_with_a_lock_is_cut_off_and_the_others_go_on(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempopt.storage.engines.IDLE_SECONDS", 1)
    with open_store(url) as store, open_store(url) as sleeper:
        study = store.create_study("example", {}, "")
        may_wake = threading.Event()
        is_asleep = threading.Event()
        errors: list[BaseException] = []

        def work(connection: Connection) -> None:
            connection.execute(text("UPDATE tempopt_study SET state = 'done'"))
            is_asleep.set()
            may_wake.wait(60)
            connection.execute(text("UPDATE tempopt_study SET spec_hash = ''"))

        def sleep() -> None:
            try:
                sleeper._database.write(work)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=sleep)
        thread.start()
        assert is_asleep.wait(60)
        store.set_state(study.id, "paused")
        may_wake.set()
        thread.join()
        assert [type(error) for error in errors] == [StoreUnreachable]
        assert store.load_study("example").state == "paused"


def test_waiting_for_a_lock_too_long_is_told_as_such(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempopt.storage.engines.LOCK_SECONDS", 1)
    monkeypatch.setattr("tempopt.storage.database._MAX_LOCK_SECONDS", 0.0)
    with open_store(url) as store, open_store(url) as other_store:
        study = store.create_study("example", {}, "")

        def work(connection: Connection) -> None:
            connection.execute(text("UPDATE tempopt_study SET state = 'done'"))
            with pytest.raises(StoreUnreachable, match=r"(?i)lock.*Another program holds the database"):
                other_store.set_state(study.id, "paused")

        store._database.write(work)
        assert store.load_study("example").state == "done"


def test_a_refused_connection_is_an_outage(backend: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    scheme = {"postgresql": "postgresql", "mariadb": "mysql"}[backend]
    with pytest.raises(StoreUnreachable, match=r"refused.*Check that the server is running"):
        open_store(f"{scheme}://me:p%40ss@127.0.0.1:{port}/test")


def test_a_server_that_accepts_and_says_nothing_is_an_outage(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempopt.storage.engines.CONNECT_SECONDS", 1)
    monkeypatch.setattr("tempopt.storage.engines.ANSWER_SECONDS", 1)
    scheme = {"postgresql": "postgresql", "mariadb": "mysql"}[backend]
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(StoreUnreachable):
            open_store(f"{scheme}://me:p%40ss@127.0.0.1:{port}/test")


POSTGRESQL = {
    "the database system is starting up": "busy",
    "FATAL:  the database system is shutting down": "away",
    "FATAL:  the database system is in recovery mode": "away",
    "FATAL:  could not write init file": "away",
    "FATAL:  sorry, too many clients already": "busy",
    "could not translate host name: Temporary failure in name resolution": "away",
    "connection timeout expired": "away",
    "server closed the connection unexpectedly": "away",
    'FATAL:  password authentication failed for user "me"': "fault",
    'FATAL:  database "test" does not exist': "fault",
    'FATAL:  no pg_hba.conf entry for host "10.0.0.1"': "fault",
}
POSTGRESQL_CLASSES = {
    "UndefinedTable": "fault",
    "AdminShutdown": "away",
    "ReadOnlySqlTransaction": "busy",
    "DiskFull": "busy",
    "OutOfMemory": "busy",
    "CannotConnectNow": "busy",
    "TooManyConnections": "busy",
    "DeadlockDetected": "locked",
}
MYSQL = {
    (1040, "Too many connections"): "busy",
    (1053, "Server shutdown in progress"): "away",
    (2003, "Can't connect to MySQL server on 'h' (timed out)"): "away",
    (2013, "Lost connection to MySQL server during query"): "away",
    (1927, "Connection was killed"): "away",
    (1205, "Lock wait timeout exceeded"): "locked",
    (1021, "Disk full (/var/lib); waiting for someone to free some space... (errno: 28)"): "busy",
    (1030, 'Got error 28 "No space left on device" from storage engine InnoDB; errno: 28'): "busy",
    (1030, "Got error 168 from storage engine"): "fault",
    (3, "Error writing file './ddl_recovery.log' (Errcode: 28 \"No space left on device\")"): "busy",
    (1026, "Error writing file '/tmp/MYfd=12' (errno: 28 \"No space left on device\")"): "busy",
    (1026, "Error writing file '/tmp/MYfd=12' (errno: 5 \"Input/output error\")"): "fault",
    (1114, "The table 'tempopt_measurement' is full"): "busy",
    (1203, "User me already has more than 'max_user_connections' active connections"): "busy",
    (1226, "User 'me' has exceeded the 'max_user_connections' resource (current value: 1)"): "busy",
    (1290, "The MariaDB server is running with the --read-only option so it cannot execute this"): "busy",
    (1290, "The MySQL server is running with the --skip-grant-tables option"): "fault",
    (1792, "Cannot execute statement in a READ ONLY transaction"): "busy",
    (1836, "Running in read-only mode"): "busy",
    (1045, "Access denied for user"): "fault",
    (1049, "Unknown database"): "fault",
    (1146, "Table does not exist"): "fault",
}


def test_outages_are_told_apart_from_mistakes(backend: str) -> None:
    if backend == "postgresql":
        psycopg = pytest.importorskip("psycopg")
        errors = {psycopg.OperationalError(message): kind for message, kind in POSTGRESQL.items()}
        errors |= {getattr(psycopg.errors, name)("now"): kind for name, kind in POSTGRESQL_CLASSES.items()}
        dialect = "postgresql"
    else:
        pymysql = pytest.importorskip("pymysql")
        errors = {pymysql.err.OperationalError(*args): kind for args, kind in MYSQL.items()}
        dialect = "mysql"
    for error, kind in errors.items():
        assert classify_error(dialect, OperationalError("", {}, error)) == kind, error


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("cannot execute UPDATE in a read-only transaction", "The server accepts no writes now"),
        ("could not extend file base/1: No space left on device", "Free some space"),
        ("FATAL: could not write init file", "Free some space"),
        ('Error writing file (Errcode: 28 "No space left on device")', "Free some space"),
        ("The table 'tempopt_ticket' is full", "Free some space"),
        ("connection failed: FATAL: the database system is in recovery mode", "The server has crashed"),
        ("FATAL: sorry, too many clients already", "run fewer agents: each holds one"),
    ],
)
def test_what_is_advised_about_a_server_is_about_servers(backend: str, message: str, advice: str) -> None:
    name = {"postgresql": "postgresql", "mariadb": "mysql"}[backend]
    fault = OperationalError("", {}, Exception(message))
    fault.orig.sqlstate = "53100"  # type: ignore[union-attr]
    with pytest.raises(StorageError, match=re.escape(advice)) as error:
        raise_storage_error(parse_database_url(f"{name}://me:secret@host/studies"), name, fault)
    assert "SQLite" not in str(error.value)
