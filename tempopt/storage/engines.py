"""SQLAlchemy engines: how transactions begin, and the timeouts of networks and locks."""

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
# Shorter than the wait for an answer: waiting for a lock is not an outage.
LOCK_SECONDS = 5
ANSWER_SECONDS = 10
# The server disconnects a client that was suspended while it held locks after this time.
IDLE_SECONDS = 30
# Packets are not acknowledged for so long when the network is cut.
_SILENCE_SECONDS = 5
_PROBE = {"keepalives_idle": 3, "keepalives_interval": 1, "keepalives_count": 3}


def sqlite_engine(address: DatabaseUrl, begin: str) -> Engine:
    """Return an engine whose transactions begin with a statement, when SQLAlchemy begins them.

    The sqlite3 module begins a transaction only at the first write, after the reads on which the write
    depends: two processes could claim the same row.

    Args:
        address: The database.
        begin: The statement, such as ``BEGIN IMMEDIATE``.
    """
    path = Path(address.url.database or "")
    reads = begin == "BEGIN"
    engine = create_engine(address.url, creator=lambda: _connect_sqlite(path, reads=reads))

    @event.listens_for(engine, "connect")
    def prepare_connection(connection: Any, record: Any) -> None:
        connection.isolation_level = None
        # a damaged text does not keep the rest of its row from being read
        connection.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "checkin")
    def drop_frozen_connection(connection: Any, record: Any) -> None:
        # the file may be writable by now, and others may write to it: the next transaction reconnects
        if isinstance(connection, _FrozenConnection):
            record.invalidate()

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        # SQLite would continue to write into a deleted file
        before = connection.info.get("file")
        if before is not None and before != _read_file_identity(address, file_id=before):
            connection.invalidate()
            raise StorageError(
                f"The database file {address.url.database} was deleted or replaced while it was in use. "
                "Restore it, or start again with another file."
            )
        connection.exec_driver_sql(begin)
        connection.info["file"] = before or _read_file_identity(address, file_id=None)

    return engine


class _FrozenConnection(sqlite3.Connection):
    """A connection that treats the file as immutable, and does not see changes of it."""


def _connect_sqlite(path: Path, *, reads: bool) -> sqlite3.Connection:
    """Return a connection to an SQLite file; a read-only connection accepts a file that is not writable."""
    if not reads or not path.exists() or (_is_writable(path) and _is_writable(path.parent)):
        return sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    log = path.with_name(f"{path.name}-wal")
    # To read a database with a write-ahead log, SQLite makes a file. Without a log, a file that is not
    # writable does not change and can be opened as immutable.
    is_frozen = not (log.exists() and log.stat().st_size)
    uri = f"file:{quote(str(path))}?mode=ro{'&immutable=1' * is_frozen}"
    kind = _FrozenConnection if is_frozen else sqlite3.Connection
    return sqlite3.connect(uri, timeout=BUSY_SECONDS, check_same_thread=False, uri=True, factory=kind)


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _read_file_identity(address: DatabaseUrl, *, file_id: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return device and inode of the file at an SQLite address, None if there is none.

    Args:
        file_id: The last known identity, returned if the file cannot be examined now.
    """
    try:
        file_stat = Path(address.url.database or ":memory:").stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return file_id
    return file_stat.st_dev, file_stat.st_ino


def server_engine(address: DatabaseUrl) -> Engine:
    """Return an engine for a server; READ COMMITTED, since MySQL's default locks gaps between rows."""
    is_mysql = address.url.get_backend_name() == "mysql"
    limits = _build_mysql_limits() if is_mysql else _build_postgresql_limits(address)
    limits = {name: value for name, value in limits.items() if name not in address.url.query}
    try:
        engine = create_engine(
            address.url, isolation_level="READ COMMITTED", pool_pre_ping=True, connect_args=limits
        )
    except (TypeError, ValueError) as error:
        raise _build_connection_error(address, error) from None
    event.listen(engine, "do_connect", functools.partial(_connect, address))
    if is_mysql:
        event.listen(engine, "connect", _limit_mysql)
    return engine


def _connect(
    address: DatabaseUrl, dialect: Dialect, record: object, args: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Return a new connection; raise StorageError if the driver rejects the URL's options."""
    driver: Any = dialect.loaded_dbapi
    try:
        return driver.connect(*args, **options)
    except driver.Error:
        # handled in database_errors.py
        raise
    except Exception as error:
        raise _build_connection_error(address, error) from None


def _build_connection_error(address: DatabaseUrl, error: Exception) -> StorageError:
    message = address.mask(" ".join(str(error).split())).rstrip(".") or type(error).__name__
    return StorageError(
        f"The storage URL {address.masked} cannot be connected to: {message}. Check its host, and the "
        'options that follow its "?".'
    )


def _build_postgresql_limits(address: DatabaseUrl) -> dict[str, Any]:
    settings = f"-c lock_timeout={LOCK_SECONDS}s -c idle_in_transaction_session_timeout={IDLE_SECONDS}s"
    return {
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": 1000 * _SILENCE_SECONDS,
        "keepalives": 1,
        **_PROBE,
        "options": settings,
    }


def _build_mysql_limits() -> dict[str, Any]:
    return {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": ANSWER_SECONDS,
        "write_timeout": ANSWER_SECONDS,
    }


def _limit_mysql(connection: Any, record: Any) -> None:
    """Set a new connection's timeouts, and UTC: in other time zones one hour of the year occurs twice."""
    # MySQL does not distinguish idle connections from idle transactions; the pool reconnects.
    idle = "idle_transaction_timeout" if "MariaDB" in connection.get_server_info() else "wait_timeout"
    settings = {
        "time_zone": "'+00:00'",
        "innodb_lock_wait_timeout": LOCK_SECONDS,
        "lock_wait_timeout": LOCK_SECONDS,
        idle: IDLE_SECONDS,
    }
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {', '.join(f'{name} = {value}' for name, value in settings.items())}")
    _set_silence_timeout(getattr(connection, "_sock", None))


def _set_silence_timeout(connection_socket: Any) -> None:
    """Let a socket fail when its packets are not acknowledged: PyMySQL has no option for this."""
    if not isinstance(connection_socket, socket.socket) or connection_socket.family not in (
        socket.AF_INET,
        socket.AF_INET6,
    ):
        return
    connection_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_USER_TIMEOUT": 1000 * _SILENCE_SECONDS,
        "TCP_KEEPIDLE": _PROBE["keepalives_idle"],
        "TCP_KEEPINTVL": _PROBE["keepalives_interval"],
        "TCP_KEEPCNT": _PROBE["keepalives_count"],
    }
    for name, value in options.items():
        # Not every system has all of these options.
        if hasattr(socket, name):
            connection_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
