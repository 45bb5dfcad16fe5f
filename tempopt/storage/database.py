"""Connections and transactions of one database, with readable errors; independent of the tables."""

from __future__ import annotations

import contextlib
import functools
import random
import sqlite3
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tempopt.errors import StorageError, install_command
from tempopt.storage.database_errors import classify_error, raise_storage_error
from tempopt.storage.engines import server_engine, sqlite_engine
from tempopt.storage.urls import DatabaseUrl

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound="Repository")

_EXTRAS = {"postgresql": ("psycopg", "postgresql"), "mysql": ("pymysql", "mysql")}
_MAX_LOCK_SECONDS = 20.0
# Not the global generator: waiting must not change the user's random numbers.
_JITTER = random.SystemRandom()


class Database:
    """One database: an engine for reads, an engine for writes, and its URL.

    Each call runs a function of a connection in one transaction. A write that met a lock or a deadlock is
    rolled back and repeated. A lost connection raises StoreUnreachable and is not repeated, since the
    transaction may have been committed; the next call makes a new connection.

    Raises:
        StorageError: The driver of the database is not installed.
    """

    def __init__(self, address: DatabaseUrl) -> None:
        self.address = address
        self.dialect = address.url.get_backend_name()
        try:
            if self.dialect == "sqlite":
                self._writer = sqlite_engine(address, "BEGIN IMMEDIATE")
                self._reader = sqlite_engine(address, "BEGIN")
            else:
                self._writer = self._reader = server_engine(address)
        except ImportError:
            module, extra = _EXTRAS[self.dialect]
            raise StorageError(
                f"The database {address.masked} needs the Python package {module}, which is not installed. "
                f"Run: {install_command(extra)}"
            ) from None

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function in one read-only transaction.

        Raises:
            StoreUnreachable: The database cannot be reached, or is locked by others.
            StorageError: It fails.
        """
        try:
            with self._reader.begin() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            raise_storage_error(self.address, self.dialect, error)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run a function in one transaction, repeated if it met a lock.

        Raises:
            StoreUnreachable: The database cannot be reached, or is locked by others; the transaction may have
                been committed.
            StorageError: It fails.
        """
        deadline = time.monotonic() + _MAX_LOCK_SECONDS
        pause = 0.01
        while True:
            try:
                with self._writer.begin() as connection:
                    return work(connection)
            except SQLAlchemyError as error:
                kind = classify_error(self.dialect, error)
                if kind != "locked" or time.monotonic() > deadline:
                    if kind == "busy":
                        # after a fail-over, the connection may lead to a server that is now a standby
                        self._writer.dispose()
                    raise_storage_error(self.address, self.dialect, error)
            time.sleep(pause * _JITTER.uniform(0.5, 1.5))
            pause = min(2 * pause, 0.5)

    @property
    def engine(self) -> Engine:
        """The engine for writes."""
        return self._writer

    def enable_write_ahead_log(self) -> None:
        """Allow SQLite to read during a write (stored in the file); other databases do so anyway."""
        if self.dialect != "sqlite":
            return
        # Fails without shared memory, or while the database is in use: the rollback journal works, too.
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(self._writer.raw_connection()) as raw,
        ):
            raw.cursor().execute("PRAGMA journal_mode=WAL")

    def close(self) -> None:
        """Close every connection."""
        self._writer.dispose()
        self._reader.dispose()


class Repository:
    """Rows of one kind in one database; threads may share it.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database


def read_transaction(method: Callable[Concatenate[R, Connection, P], T]) -> Callable[Concatenate[R, P], T]:
    """Run a method of a repository in one read-only transaction; callers pass no connection."""

    @functools.wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._database.read(lambda connection: method(self, connection, *args, **kwargs))

    return call


def write_transaction(method: Callable[Concatenate[R, Connection, P], T]) -> Callable[Concatenate[R, P], T]:
    """Run a method of a repository in one transaction, repeated if it met a lock."""

    @functools.wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._database.write(lambda connection: method(self, connection, *args, **kwargs))

    return call
