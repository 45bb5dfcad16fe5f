"""SQLAlchemy engines: how a transaction begins, and how long anybody waits for a network or for a lock."""

from __future__ import annotations

import functools
import os
import socket
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Dialect, Engine, create_engine, event

from tempopt.errors import StorageError
from tempopt.storage.urls import DatabaseUrl

CONNECT_SECONDS = 5
BUSY_SECONDS = 1.0
# Waiting for a lock ends before waiting for an answer does: it is no outage.
LOCK_SECONDS = 5
ANSWER_SECONDS = 10
# A client that was stopped while it held locks is cut off by the server after this time.
IDLE_SECONDS = 30
# Packets that are not acknowledged: the network is cut.
_SILENCE_SECONDS = 5
_PROBE = {"keepalives_idle": 3, "keepalives_interval": 1, "keepalives_count": 3}


def sqlite_engine(address: DatabaseUrl, begin: str) -> Engine:
    """Return an engine whose transactions begin where SQLAlchemy says, with the statement given.

    The sqlite3 module begins one only at the first change, after the reading that the change rests
    on: two processes then claim the same row.
    """
    path = Path(address.url.database or "")
    reads = begin == "BEGIN"
    engine = create_engine(address.url, creator=lambda: _sqlite_connection(path, reads=reads))

    @event.listens_for(engine, "connect")
    def prepare_connection(connection: Any, record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "checkin")
    def drop_frozen(connection: Any, record: Any) -> None:
        # the file may be written again by now, and others may write to it: the next transaction looks anew
        if isinstance(connection, _FrozenConnection):
            record.invalidate()

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        # SQLite writes on into a file that has been deleted, and will never be read
        before = connection.info.get("file")
        if before is not None and before != _file_identity(address, file_id=before):
            connection.invalidate()
            raise StorageError(
                f"The database file {address.url.database} was deleted or replaced while it was in use. "
                "Put it back, or begin again in another one."
            )
        connection.exec_driver_sql(begin)
        connection.info["file"] = before or _file_identity(address, file_id=None)

    return engine


class _FrozenConnection(sqlite3.Connection):
    """A connection that takes the file for one that does not change, and sees no change of it."""


def _sqlite_connection(path: Path, *, reads: bool) -> sqlite3.Connection:
    """Return a connection to an SQLite file; one that only reads takes a file that cannot be written."""
    if not reads or not path.exists() or (_writable(path) and _writable(path.parent)):
        return sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    log = path.with_name(f"{path.name}-wal")
    # To read beside a write-ahead log, SQLite makes a file. Without a log there is nothing to be read
    # beside, and a file that cannot be written stays as it is.
    is_frozen = not (log.exists() and log.stat().st_size)
    uri = f"file:{quote(str(path))}?mode=ro{'&immutable=1' * is_frozen}"
    kind = _FrozenConnection if is_frozen else sqlite3.Connection
    return sqlite3.connect(uri, timeout=BUSY_SECONDS, check_same_thread=False, uri=True, factory=kind)


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _file_identity(address: DatabaseUrl, *, file_id: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return what tells the file at an SQLite address from every other, None if there is none.

    Args:
        file_id: What it was before, which it is still if it cannot be looked at just now.
    """
    try:
        file_stat = Path(address.url.database or ":memory:").stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return file_id
    return file_stat.st_dev, file_stat.st_ino


def server_engine(address: DatabaseUrl) -> Engine:
    """Return an engine for a server; READ COMMITTED, since MySQL's default locks the gaps between rows."""
    is_mysql = address.url.get_backend_name() == "mysql"
    limits = _mysql_limits() if is_mysql else _postgresql_limits(address)
    limits = {name: value for name, value in limits.items() if name not in address.url.query}
    try:
        engine = create_engine(
            address.url, isolation_level="READ COMMITTED", pool_pre_ping=True, connect_args=limits
        )
    except (TypeError, ValueError) as error:
        raise _connection_error(address, error) from None
    event.listen(engine, "do_connect", functools.partial(_connect, address))
    if is_mysql:
        event.listen(engine, "connect", _limit_mysql)
    return engine


def _connect(
    address: DatabaseUrl, dialect: Dialect, record: object, args: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Return a new connection; StorageError if the driver rejects the URL's options."""
    driver: Any = dialect.loaded_dbapi
    try:
        return driver.connect(*args, **options)
    except driver.Error:
        # what becomes of these is database_errors.py's
        raise
    except Exception as error:
        raise _connection_error(address, error) from None


def _connection_error(address: DatabaseUrl, error: Exception) -> StorageError:
    message = address.mask(" ".join(str(error).split())).rstrip(".") or type(error).__name__
    return StorageError(
        f"The storage URL {address.masked} cannot be connected to: {message}. Check its host, and the "
        'options that follow its "?".'
    )


def _postgresql_limits(address: DatabaseUrl) -> dict[str, Any]:
    settings = f"-c lock_timeout={LOCK_SECONDS}s -c idle_in_transaction_session_timeout={IDLE_SECONDS}s"
    return {
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": 1000 * _SILENCE_SECONDS,
        "keepalives": 1,
        **_PROBE,
        "options": settings,
    }


def _mysql_limits() -> dict[str, Any]:
    return {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": ANSWER_SECONDS,
        "write_timeout": ANSWER_SECONDS,
    }


def _limit_mysql(connection: Any, record: Any) -> None:
    """Set a new connection's limits, and its time zone: elsewhere one hour of the year comes twice."""
    # MySQL cannot tell idle within a transaction from idle; the pool connects anew.
    idle = "idle_transaction_timeout" if "MariaDB" in connection.get_server_info() else "wait_timeout"
    settings = {
        "time_zone": "'+00:00'",
        "innodb_lock_wait_timeout": LOCK_SECONDS,
        "lock_wait_timeout": LOCK_SECONDS,
        idle: IDLE_SECONDS,
    }
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {', '.join(f'{name} = {value}' for name, value in settings.items())}")
    _give_up_on_silence(getattr(connection, "_sock", None))


def _give_up_on_silence(connected: Any) -> None:
    """Let a socket fail when its packets are not acknowledged; libpq has options for this, PyMySQL none."""
    if not isinstance(connected, socket.socket) or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_USER_TIMEOUT": 1000 * _SILENCE_SECONDS,
        "TCP_KEEPIDLE": _PROBE["keepalives_idle"],
        "TCP_KEEPINTVL": _PROBE["keepalives_interval"],
        "TCP_KEEPCNT": _PROBE["keepalives_count"],
    }
    for name, value in options.items():
        # Not every system has every one of them.
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
